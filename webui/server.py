"""Launch the Gradio server with our routes and security middleware."""

import argparse
import secrets
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from starlette.middleware import Middleware

from trainer.core.device import GIB
from trainer.runs.run_store import RunStore
from webui.page import build_head, build_page
from webui.routes import build_routes
from webui.security.login import LoginPage
from webui.security.origin_check import OriginCheck
from webui.security.rate_limit import LoginRateLimit, RateLimiter
from webui.security.request_limits import BodyLimit, UploadLimits
from webui.security.token_auth import TokenAuth, stored_token
from webui.studio import Studio
from webui.theme import build_theme


def serve(args: argparse.Namespace, scratch: Path, home: Path, port: int) -> None:
    """Re-attach to runs that are training, start the queue, and serve until interrupted."""
    runs = home / args.runs
    uploads = runs / ".page" / "uploads"
    uploads.mkdir(parents=True, exist_ok=True)
    studio = Studio(RunStore(runs), scratch, uploads, home)
    studio.library.attach()
    studio.library.keep_queue()
    # Access is controlled by a password if there is one, else by the token in the printed address.
    token = "" if args.auth or not args.token else stored_token(runs / ".page" / "token")
    max_bytes = int(args.max_upload * GIB)
    page = build_page(studio)
    page.queue(default_concurrency_limit=8, max_size=64)
    page.launch(
        server_name=args.host,
        server_port=port,
        auth=_login(args.auth) if args.auth else None,
        inbrowser=False,
        prevent_thread_lock=True,
        quiet=True,
        share=False,
        show_error=False,
        ssr_mode=False,
        # Skips Gradio's check that the page answers within 3 s, which fails on a busy machine.
        _frontend=False,
        pwa=False,
        run_history=False,
        enable_monitoring=False,
        footer_links=[],
        max_file_size=max_bytes,
        allowed_paths=[],
        theme=build_theme(),
        head=build_head(),
        app_kwargs={
            "routes": build_routes(studio),
            "middleware": [
                Middleware(OriginCheck, hosts=[args.host, *args.allow_host]),
                *([Middleware(TokenAuth, token=token)] if token else []),
                *(
                    [Middleware(LoginRateLimit, limiter=RateLimiter()), Middleware(LoginPage)]
                    if args.auth
                    else []
                ),
                Middleware(BodyLimit, allowance=UploadLimits(max_bytes, uploads)),
            ],
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
        },
    )
    address = f"{page.local_url}?token={token}" if token else str(page.local_url)
    # Outside of block_thread Gradio does not catch Ctrl+C itself.
    with suppress(KeyboardInterrupt):
        sys.stdout.write(f"Timbre runs at {address} - runs are stored in {studio.library.folder}\n")
        sys.stdout.flush()
        if args.open:
            webbrowser.open(address)
        page.block_thread()


def _login(auth: str) -> Callable[[str, str], bool]:
    """Return a function that checks a login against `name:password` in constant time."""
    wanted = [part.encode() for part in auth.split(":", 1)]

    def is_right(name: str, password: str) -> bool:
        given = (name.encode(errors="replace"), password.encode(errors="replace"))
        return all([secrets.compare_digest(*pair) for pair in zip(given, wanted, strict=True)])

    return is_right
