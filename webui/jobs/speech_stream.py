"""Stream speech to the browser while a child process is still generating it."""

import logging
import threading
from collections.abc import Callable

import anyio
from anyio import CancelScope, to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from trainer.core.errors import DataError
from trainer.runs.run_store import RunStore
from webui.jobs.synthesis import LiveSpeech, check_name

MOST_LETTERS = 1000  # Chosen by hand: about a minute of speech; longer texts go to a file.
_LONGEST_NAME = 200
_TIMEOUT_S = 300.0
_BUSY_WAIT_S = 2.0  # Long enough for the child of the previous sentence to be killed.
_BUSY = (
    "Another sentence is being spoken, and this server speaks one at a time. Wait until it ends, "
    "or press Stop there."
)
_HEADERS = {
    "Cache-Control": "no-store",
    # Keeps nginx from buffering the response until it is complete.
    "X-Accel-Buffering": "no",
}


class Speeches:
    """The speech route; the whole server speaks one sentence at a time."""

    def __init__(self, library: RunStore) -> None:
        self._library = library
        self._speaking = threading.Lock()

    def speech(self, request: Request) -> Response:
        """Stream `text` spoken by the `run`, `checkpoint` and `speaker` of the query."""
        # This GET starts a process, so other sites must not embed it as audio.
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return JSONResponse({"error": "Cross-site requests are not allowed."}, 403)
        query = request.query_params
        run = self._library.get(query.get("run", ""))
        checkpoint, speaker = query.get("checkpoint", "best"), query.get("speaker", "")
        check_name(checkpoint)
        text = _checked_text(query.get("text", ""), speaker)
        if request.method == "HEAD":
            return Response(media_type="audio/wav", headers=_HEADERS)

        def start() -> LiveSpeech:
            return LiveSpeech(run, text, speaker=speaker, checkpoint=checkpoint)

        return _SpeechAnswer(self, start)

    async def take(self) -> bool:
        """Acquire the speaking slot; wait briefly, as the previous sentence may be ending."""
        with anyio.move_on_after(_BUSY_WAIT_S):
            while not self._speaking.acquire(blocking=False):
                await anyio.sleep(0.05)
            return True
        return False

    def release(self) -> None:
        """Release the speaking slot."""
        self._speaking.release()


class _SpeechAnswer(Response):
    """Streams a child's audio; the child is killed when the client disconnects."""

    def __init__(self, speeches: Speeches, start: Callable[[], LiveSpeech]) -> None:
        super().__init__(media_type="audio/wav", headers=_HEADERS)
        del self.headers["content-length"]
        self._speeches = speeches
        self._start = start
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send audio, or an error message with status 400 or 503."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            refusal = await self._speak(send)
            if refusal is not None:
                await refusal(scope, receive, send)
            tasks.cancel_scope.cancel()

    async def _speak(self, send: Send) -> Response | None:
        """Send the audio; return an error response if there is none to send."""
        if not await self._speeches.take():
            return _refusal(_BUSY, 503)
        speech = None
        try:
            speech = self._start()
            with anyio.fail_after(_TIMEOUT_S):
                return await self._relay(speech, send)
        except TimeoutError:
            return self._given_up(f"Timed out after {_TIMEOUT_S:.0f} s. Try a shorter text.")
        finally:
            if speech is not None:
                speech.stop()
            self._speeches.release()

    async def _relay(self, speech: LiveSpeech, send: Send) -> Response | None:
        sound = await to_thread.run_sync(speech.read, abandon_on_cancel=True)
        if sound:
            self._has_begun = True
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
        while sound:
            await send({"type": "http.response.body", "body": sound, "more_body": True})
            sound = await to_thread.run_sync(speech.read, abandon_on_cancel=True)
        problem = await to_thread.run_sync(speech.problem, abandon_on_cancel=True)
        if problem or not self._has_begun:
            return self._given_up(problem or "The model produced no audio.")
        await send({"type": "http.response.body", "body": b""})
        return None

    def _given_up(self, problem: str) -> Response | None:
        """Return an error response, or None if audio was already sent: the stream just ends."""
        if not self._has_begun:
            return _refusal(problem, 400)
        logging.getLogger(__name__).warning("Speech was interrupted: %s", problem)
        return None


def _refusal(problem: str, status: int) -> Response:
    return JSONResponse({"error": problem}, status, _HEADERS)


async def _cancel_when_gone(receive: Receive, scope: CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    scope.cancel()


def _checked_text(text: str, speaker: str) -> str:
    """Return the text to speak.

    Raises:
        DataError: the text is empty, or the text or the speaker's name is too long.
    """
    if not text.strip():
        raise DataError("The text is empty. Write a sentence first.")
    if len(text) > MOST_LETTERS:
        raise DataError(
            f"The text has {len(text)} characters; live speech allows at most {MOST_LETTERS}. "
            "Shorten it, or use Speak to file."
        )
    if len(speaker) > _LONGEST_NAME:
        raise DataError(f"A speaker name can have at most {_LONGEST_NAME} characters.")
    return text
