"""Show our own login page instead of Gradio's."""

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from webui.scripts import describe_scripts
from webui.views.markup import render

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Timbre</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="studio/page/page.css"></head><body class="login-page">
<main class="login">
<div class="brand"><span class="logo" aria-hidden="true"></span><h1>Timbre</h1></div>
<h2>Log in to Timbre</h2>
<form id="login-form"><label>Name <input name="username" autocomplete="username" required autofocus>
</label><label>Password <input name="password" type="password" autocomplete="current-password"
required></label><p class="notice error" role="alert" id="login-refused" hidden></p>
<button>Log in</button></form></main>{scripts}</body></html>"""


class LoginPage:
    """ASGI middleware that shows the login form to visitors who are not logged in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with the login form."""
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/":
            request = Request(scope)
            is_person = "text/html" in request.headers.get("accept", "")
            if is_person and not is_logged_in(request):
                page = _PAGE.format(scripts=render("scripts", scripts=describe_scripts()))
                answer = HTMLResponse(page, 401, {"Cache-Control": "no-store"})
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_logged_in(request: Request) -> bool:
    """Tell whether the page needs no login or the request has Gradio's login cookie."""
    app = request.app
    if not getattr(app, "auth", None):
        return True
    names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
    tokens = [request.cookies.get(name) for name in names]
    return any(token is not None and token in app.tokens for token in tokens)
