"""Protect the page with a token, so that other users of a shared machine cannot open it.

The program prints an address with a random token. The first request with it sets a cookie and
redirects to an address without the token, so that the token does not stay in the browser's
history and does not reach other sites in a Referer header.
"""

import hashlib
import os
import secrets
from html import escape
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from webui.security.rate_limit import RateLimiter, address_of, refusal

_LEAST_LENGTH = 32
_KEPT_S = 30 * 86400
_OPEN_PATHS = ("/gradio_api/startup-events",)
"""Gradio requests this path of itself at startup; the response is only true or false."""

_ASKING = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Timbre</title>
<style>body{{font:16px/1.5 system-ui;max-width:34rem;margin:4rem auto;padding:0 1rem}}</style>
</head><body><h1>Timbre</h1><p>{reason} Open the address that the program printed when it started:
it ends with the token. The token is also in <code>.page/token</code> in the runs folder.</p>
<form method="get" action="/"><label>Token <input name="token" type="password" autofocus
autocomplete="off"></label> <button>Open</button></form></body></html>"""


class TokenAuth:
    """ASGI middleware that refuses requests without the token or its cookie."""

    def __init__(self, app: ASGIApp, token: str, limiter: RateLimiter | None = None) -> None:
        self._app = app
        self._token = token
        self._limiter = limiter or RateLimiter()
        # Cookies ignore ports, so the name must differ between servers on one host.
        self.cookie = "timbre-" + hashlib.sha256(token.encode()).hexdigest()[:12]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401; a valid token in the address becomes a cookie."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        answer = self._answer(Request(scope))
        await (answer or self._app)(scope, receive, send)

    def _answer(self, request: Request) -> Response | None:
        """Return the response to send instead of the page, or None to pass the request on."""
        if self._is_right(request.cookies.get(self.cookie, "")):
            # Already logged in, so this is not a guess: only remove the token from the address.
            given = request.query_params.get("token", "")
            return self._let_in(request) if given and self._may_enter(request) else None
        given = request.query_params.get("token")
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if given or bearer:
            address = address_of(request.scope)
            if wait_s := self._limiter.wait_s(address):
                return refusal(wait_s)
            if self._may_enter(request) or self._is_right(bearer):
                self._limiter.succeed(address)
                return self._let_in(request) if self._may_enter(request) else None
            self._limiter.fail(address)
        reason = "This token is wrong." if given else "This page requires a token."
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(_ASKING.format(reason=escape(reason)), status_code=401)
        return JSONResponse({"error": f"{reason} The program printed it at startup."}, 401)

    def _may_enter(self, request: Request) -> bool:
        """Tell whether a GET or HEAD request has the valid token in its address."""
        given = request.query_params.get("token", "")
        return request.method in ("GET", "HEAD") and self._is_right(given)

    def _let_in(self, request: Request) -> Response:
        pairs = parse_qsl(request.url.query, keep_blank_values=True)
        kept = urlencode([(name, value) for name, value in pairs if name != "token"])
        # Exactly one slash: a browser reads "//name" as another host (an open redirect).
        path = "/" + request.url.path.lstrip("/\\")
        answer = RedirectResponse(path + (f"?{kept}" if kept else ""), status_code=303)
        answer.set_cookie(self.cookie, self._token, max_age=_KEPT_S, httponly=True, samesite="lax")
        answer.headers["Cache-Control"] = "no-store"
        return answer

    def _is_right(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token.encode())


def stored_token(path: Path) -> str:
    """Return the token from a file that only its owner can read; create the file if needed.

    The token survives restarts, so that open pages keep working. Delete the file to get a new one.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
        path.chmod(0o600)
    except (FileNotFoundError, UnicodeDecodeError):
        token = ""
    if len(token) >= _LEAST_LENGTH:
        return token
    token = secrets.token_urlsafe(_LEAST_LENGTH)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token
