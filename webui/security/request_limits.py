"""Limit the size of request bodies and the time a client may stall."""

import asyncio
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer.core.device import GIB, MIB

MAX_FORM_BYTES = 64 * MIB
"""Largest body of any request except an upload (form values, table cells); chosen by hand."""

_RESERVE_BYTES = GIB  # Chosen by hand: a checkpoint of a mid-sized model still fits.
_MULTIPART_BYTES = MIB  # For the multipart headers that come on top of the files.


@dataclass(frozen=True)
class UploadLimits:
    """The largest upload, the folder it goes to, and the longest time without progress."""

    max_upload_bytes: int
    folder: Path
    timeout_s: float = 60.0

    def free_bytes(self) -> int:
        """Return how many bytes an upload may use, with a reserve for running checkpoints."""
        return max(0, shutil.disk_usage(self.folder).free - _RESERVE_BYTES)


class BodyLimit:
    """ASGI middleware that refuses large bodies and drops clients that stall."""

    def __init__(self, app: ASGIApp, allowance: UploadLimits) -> None:
        self._app = app
        self._allowance = allowance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 413 (too large) or 408 (too slow)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_upload = scope["method"] == "POST" and scope["path"].endswith("/upload")
        most, refusal = self._most(is_upload)
        exchange = _Exchange(receive, send, most, self._allowance.timeout_s)
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdigit() or int(declared) > most:
            await PlainTextResponse(refusal, status_code=413)(scope, receive, send)
            return
        # To the app, a body that is cut off here looks like a client that disconnected, so the
        # real reason has to be sent from here.
        with suppress(ClientDisconnect):
            await self._app(scope, exchange.receive, exchange.send)
        if exchange.status and not exchange.has_begun:
            text = refusal if exchange.status == 413 else "The request timed out."
            answer = PlainTextResponse(text, exchange.status, {"Connection": "close"})
            await answer(scope, receive, send)

    def _most(self, is_upload: bool) -> tuple[int, str]:
        """Return the largest body in bytes, and the message for a larger one."""
        if not is_upload:
            return MAX_FORM_BYTES, "The request is too large for this page."
        allowed = self._allowance.max_upload_bytes
        free = self._allowance.free_bytes()
        if free < allowed:
            return free, (
                f"The upload doesn't fit: only {free / GIB:.1f} GB are free for uploads on the "
                "server. Free some space, or copy the files to the server and enter their folder."
            )
        return allowed + _MULTIPART_BYTES, (
            f"The upload is larger than {allowed / GIB:.3g} GB. Copy the files to the server and "
            "enter their folder, or restart the server with a larger --max-upload."
        )


class _Exchange:
    """One request: counts the bytes received and enforces the timeout."""

    def __init__(self, receive: Receive, send: Send, most: int, patience_s: float) -> None:
        self._receive, self._send = receive, send
        self._left, self._timeout_s = most, patience_s
        self._has_body = True
        self.status = 0
        self.has_begun = False

    async def receive(self) -> Message:
        """Return the next message, or a disconnect if the body is too large or too slow."""
        if not self._has_body:
            return await self._receive()
        try:
            async with asyncio.timeout(self._timeout_s):
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
        """Send a message; drop a client that does not read it in time.

        Raises:
            OSError: the client did not read for too long.
        """
        if self.status:
            return
        self.has_begun = True
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            raise OSError("The client did not read for too long.") from None
