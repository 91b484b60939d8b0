"""Gate: who may use the page on a machine that several people share: whoever brings the token.

The address that the program prints holds a random token. Its first use leaves a cookie and takes
the token out of the address, so that it stays in no history and reaches no other site.
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

from webui.brake import Brake, address_of, refusal

_LEAST_LENGTH = 32
_KEPT_S = 30 * 86400
_OPEN_PATHS = ("/gradio_api/startup-events",)
"""What Gradio asks itself for when it starts; it answers with true or false."""

_ASKING = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Timbre</title>
<style>body{{font:16px/1.5 system-ui;max-width:34rem;margin:4rem auto;padding:0 1rem}}</style>
</head><body><h1>Timbre</h1><p>{reason} Open the address that the program printed when it started:
it ends with the token. The file <code>.page/token</code> in the folder of runs holds it too.</p>
<form method="get" action="/"><label>Token <input name="token" type="password" autofocus
autocomplete="off"></label> <button>Open</button></form></body></html>"""


class Gate:
    """ASGI middleware: passes requests on that carry the token or its cookie, refuses others."""

    def __init__(self, app: ASGIApp, token: str, brake: Brake | None = None) -> None:
        self._app = app
        self._token = token
        self._brake = brake or Brake()
        # Cookies know no ports; the name keeps those of several studios apart.
        self.cookie = "timbre-" + hashlib.sha256(token.encode()).hexdigest()[:12]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401; a right token in the address becomes a cookie."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        answer = self._answer(Request(scope))
        await (answer or self._app)(scope, receive, send)

    def _answer(self, request: Request) -> Response | None:
        """Return what is answered instead of the page, or None."""
        if self._is_right(request.cookies.get(self.cookie, "")):
            # Who is in carries no guess; a token in the address only has to leave it.
            given = request.query_params.get("token", "")
            return self._let_in(request) if given and self._may_enter(request) else None
        given = request.query_params.get("token")
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if given or bearer:
            address = address_of(request.scope)
            if wait_s := self._brake.wait_s(address):
                return refusal(wait_s)
            if self._may_enter(request) or self._is_right(bearer):
                self._brake.succeed(address)
                return self._let_in(request) if self._may_enter(request) else None
            self._brake.fail(address)
        reason = "This token is not right." if given else "This page asks for a token."
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(_ASKING.format(reason=escape(reason)), status_code=401)
        return JSONResponse({"error": f"{reason} The program printed it as it started."}, 401)

    def _may_enter(self, request: Request) -> bool:
        """Whether the address holds the right token, in a request that only reads."""
        given = request.query_params.get("token", "")
        return request.method in ("GET", "HEAD") and self._is_right(given)

    def _let_in(self, request: Request) -> Response:
        pairs = parse_qsl(request.url.query, keep_blank_values=True)
        kept = urlencode([(name, value) for name, value in pairs if name != "token"])
        # One slash: two would name another host.
        path = "/" + request.url.path.lstrip("/\\")
        answer = RedirectResponse(path + (f"?{kept}" if kept else ""), status_code=303)
        answer.set_cookie(self.cookie, self._token, max_age=_KEPT_S, httponly=True, samesite="lax")
        answer.headers["Cache-Control"] = "no-store"
        return answer

    def _is_right(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token.encode())


def stored_token(path: Path) -> str:
    """Return the token in a file that only its owner can read; the first call writes it.

    It stays the same over restarts, so that open pages go on; who deletes the file gets a new one.
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
