"""Limits: how much a request may bring, and how long it may keep the server waiting."""

import asyncio
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_FORM_BYTES = 64 * 2**20
"""The most that anything but an upload may bring: values of a form, cells of a table."""

_RESERVE_BYTES = 2**30
_MULTIPART_BYTES = 2**20


@dataclass(frozen=True)
class Allowance:
    """What requests may take: bytes of an upload, the folder it fills, seconds without progress."""

    max_upload_bytes: int
    folder: Path
    patience_s: float = 60.0

    def free_bytes(self) -> int:
        """Return how much an upload may fill, with a reserve for checkpoints that are under way."""
        return max(0, shutil.disk_usage(self.folder).free - _RESERVE_BYTES)


class Limits:
    """ASGI middleware: refuses bodies that are too large, and drops clients that stand still."""

    def __init__(self, app: ASGIApp, allowance: Allowance) -> None:
        self._app = app
        self._allowance = allowance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; 413 where it brings more than there is room for."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_upload = scope["method"] == "POST" and scope["path"].endswith("/upload")
        most, refusal = self._most(is_upload)
        exchange = _Exchange(receive, send, most, self._allowance.patience_s)
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdigit() or int(declared) > most:
            await PlainTextResponse(refusal, status_code=413)(scope, receive, send)
            return
        # The app takes a refused or a slow body for a client that left; it is told here instead.
        with suppress(ClientDisconnect):
            await self._app(scope, exchange.receive, exchange.send)
        if exchange.status and not exchange.has_begun:
            text = refusal if exchange.status == 413 else "The request came too slowly."
            answer = PlainTextResponse(text, exchange.status, {"Connection": "close"})
            await answer(scope, receive, send)

    def _most(self, is_upload: bool) -> tuple[int, str]:
        """Return how many bytes a body may have, and what is said about more."""
        if not is_upload:
            return MAX_FORM_BYTES, "This request is larger than any form of the page."
        allowed = self._allowance.max_upload_bytes
        free = self._allowance.free_bytes()
        if free < allowed:
            return free, (
                f"The upload does not fit: {free / 2**30:.1f} GB are free for uploads on the "
                "server. Free some space there, or copy the files to it and type their folder."
            )
        return allowed + _MULTIPART_BYTES, (
            f"The upload is larger than {allowed / 2**30:.3g} GB. Copy the files to the server and "
            "type their folder, or start it with a larger --max-upload."
        )


class _Exchange:
    """One request: counts what comes in, and waits for the client only so long."""

    def __init__(self, receive: Receive, send: Send, most: int, patience_s: float) -> None:
        self._receive, self._send = receive, send
        self._left, self._patience_s = most, patience_s
        self._has_body = True
        self.status = 0
        self.has_begun = False

    async def receive(self) -> Message:
        """Return the next piece; a disconnect where there is too much of it, or none in time."""
        if not self._has_body:
            return await self._receive()
        try:
            async with asyncio.timeout(self._patience_s):
                message = await self._receive()
        except TimeoutError:
            self.status = 408
            return {"type": "http.disconnect"}
        self._has_body = message.get("more_body", False)
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self.status = 413
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        """Send a piece; a client that does not take it in time is dropped.

        Raises:
            OSError: the client is gone or might as well be.
        """
        if self.status:
            return
        self.has_begun = True
        try:
            async with asyncio.timeout(self._patience_s):
                await self._send(message)
        except TimeoutError:
            raise OSError("The client took nothing for too long.") from None
