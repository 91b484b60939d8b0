"""Refuse requests that other web sites send, and set the security headers.

A browser sends cookies and reaches localhost on behalf of any page it shows. Three checks stop
that: the Host must be known (against DNS rebinding), an Origin must equal the Host (against other
sites and ports), and a request that changes something must not be cross-site.
"""

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "script-src-attr 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'self'"
)
"""Nothing is loaded from, sent to or framed by another site. Gradio needs inline scripts and
eval, but not scripts in attributes, which injected markup would use."""

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class OriginCheck:
    """ASGI middleware that checks Host, Origin and Sec-Fetch-Site of every request."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts} | {"localhost", socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 421 (unknown host) or 403 (another site)."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # Not used.
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self.refusal(scope["method"], Headers(scope=scope))
        if refusal is None and scope["path"].endswith("/openapi.json"):
            refusal = PlainTextResponse("Page not found.", status_code=404)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        """Return the response that refuses a request, or None if it is allowed."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            text = f"Unknown host '{host}'. To allow it, start the server with --allow-host NAME."
            return PlainTextResponse(text, status_code=421)
        origin = headers.get("origin")
        is_foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
        site = headers.get("sec-fetch-site", "same-origin")
        is_cross_site = method not in _SAFE_METHODS and site not in ("same-origin", "none")
        if is_foreign or is_cross_site:
            return PlainTextResponse("Cross-site requests are not allowed.", status_code=403)
        return None

    def _is_ours(self, host: str) -> bool:
        name = urlsplit(f"//{host}").hostname or ""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.lower() in self._hosts
        return True
