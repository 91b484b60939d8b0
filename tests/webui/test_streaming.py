"""Speech on its way to a player: heard before it is whole, ended when nobody listens."""

import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import psutil
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.helpers.page import make_studio
from trainer import RunConfig
from trainer.runs.run import Run
from webui.jobs import speech_stream, synthesis
from webui.routes import build_routes

FAKE = Path(__file__).parent.parent / "helpers" / "fake_speaker.py"
Send = Callable[[dict[str, Any]], Awaitable[None]]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starlette:
    monkeypatch.setattr(
        synthesis, "trainer_command", lambda *words: [sys.executable, str(FAKE), *words]
    )
    monkeypatch.setattr(speech_stream, "_BUSY_WAIT_S", 0.05)
    studio = make_studio(tmp_path)
    Run.create(studio.library.folder / "voice", RunConfig())
    return Starlette(routes=build_routes(studio))


@pytest.fixture
def client(app: Starlette) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "voice"


class Listener:
    """A browser that hears what comes and may leave at any time."""

    def __init__(self, app: Starlette, **query: str) -> None:
        self.app = app
        self.query = {"run": "voice", "text": "Hello."} | query
        self.status = 0
        self.body = b""
        self.is_finished = False
        self.heard = anyio.Event()
        self.left = anyio.Event()

    async def listen(self) -> None:
        scope = {
            "type": "http", "method": "GET", "path": "/studio/speech", "headers": [],
            "query_string": urlencode(self.query).encode(), "http_version": "1.1",
        }  # fmt: skip
        await self.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")
        is_body = message["type"] == "http.response.body"
        self.is_finished = is_body and not message.get("more_body", False)
        if self.body:
            self.heard.set()


def test_sound_is_heard_before_it_is_whole_and_to_its_end(app: Starlette, run_folder: Path) -> None:
    async def story() -> tuple[int, Listener]:
        listener, at_first = Listener(app), 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.listen)
            await listener.heard.wait()
            at_first = len(listener.body)
            (run_folder / "go-on").touch()
        return at_first, listener

    at_first, listener = anyio.run(story)

    assert 44 <= at_first <= 44 + 2 * 48_000
    assert (listener.status, len(listener.body)) == (200, 44 + 3 * 48_000)
    assert listener.is_finished
    assert listener.body.startswith(b"RIFF\xff\xff\xff\xffWAVE")


@pytest.mark.fault("F1")
def test_the_child_ends_when_the_listener_leaves(app: Starlette, run_folder: Path) -> None:
    async def story() -> None:
        listener = Listener(app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.listen)
            await listener.heard.wait()
            listener.left.set()

    anyio.run(story)

    assert not psutil.pid_exists(int((run_folder / "speaker.pid").read_text()))


def test_the_child_ends_when_the_listener_leaves_before_the_first_sound(
    app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> tuple[int, Listener]:
        started: list[int] = []

        class Watched(synthesis.LiveSpeech):
            def read(self) -> bytes:
                started.append(self.pid)
                anyio.from_thread.run_sync(listener.left.set)
                return super().read()

        monkeypatch.setattr(speech_stream, "LiveSpeech", Watched)
        listener = Listener(app, text="wait")
        await listener.listen()
        return started[0], listener

    pid, listener = anyio.run(story)

    assert not psutil.pid_exists(pid)
    assert listener.body == b""


def test_a_second_listener_is_asked_to_wait_and_may_come_later(
    app: Starlette, run_folder: Path
) -> None:
    async def story() -> list[Listener]:
        first, second, third = Listener(app), Listener(app), Listener(app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.listen)
            await first.heard.wait()
            await second.listen()
            (run_folder / "go-on").touch()
        await third.listen()
        return [first, second, third]

    first, second, third = anyio.run(story)

    assert (first.status, second.status, third.status) == (200, 503, 200)
    assert "speaks one at a time" in json.loads(second.body)["error"]


def test_what_cannot_be_spoken_is_the_sentence_of_the_child(client: TestClient) -> None:
    answer = client.get("/studio/speech?run=voice&text=refuse")

    assert answer.status_code == 400
    assert answer.json()["error"] == "Nothing of this can be spoken."


def test_an_answer_whose_sound_breaks_off_is_never_finished(
    app: Starlette, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(app, text="break")

    anyio.run(listener.listen)

    assert (listener.status, len(listener.body)) == (200, 44 + 2 * 48_000)
    assert not listener.is_finished
    assert "The voice broke." in caplog.text


def test_what_takes_too_long_is_given_up(
    client: TestClient, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech_stream, "_TIMEOUT_S", 0.3)

    answer = client.get("/studio/speech?run=voice&text=wait")

    assert answer.status_code == 400
    assert "Try a shorter text" in answer.json()["error"]


@pytest.mark.fault("F14")
def test_text_that_looks_like_an_option_is_text(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, run_folder: Path
) -> None:
    asked = []

    def command(*words: str) -> list[str]:
        asked.append([*words])
        return [sys.executable, "-c", ""]

    monkeypatch.setattr(synthesis, "trainer_command", command)

    answer = client.get("/studio/speech?run=voice&text=--help&speaker=--out&checkpoint=last")

    assert answer.json()["error"] == "The model produced no audio."
    assert asked == [
        ["synthesize", str(run_folder), "--text=--help", "--out=-", "--checkpoint=last",
         "--speaker=--out", "--stream"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("run=nobody&text=a", 404, "no run named 'nobody'"),
        ("run=..%2fvoice&text=a", 404, "no run named"),
        ("run=voice&text=%20", 400, "text is empty"),
        ("run=voice", 400, "text is empty"),
        ("run=voice&text=" + "a" * 1001, 400, "at most 1000"),
        ("run=voice&text=a&checkpoint=..%2fx", 400, "not a checkpoint"),
        ("run=voice&text=a&speaker=" + "a" * 201, 400, "at most 200"),
    ],
)
def test_requests_that_name_nothing_start_nothing(
    client: TestClient, run_folder: Path, query: str, status: int, words: str
) -> None:
    answer = client.get(f"/studio/speech?{query}")

    assert answer.status_code == status
    assert words in answer.json()["error"]
    assert not (run_folder / "speaker.pid").exists()


@pytest.mark.fault("F8")
def test_no_other_site_makes_the_server_speak(client: TestClient, run_folder: Path) -> None:
    headers = {"sec-fetch-site": "cross-site"}

    answer = client.get("/studio/speech?run=voice&text=refuse", headers=headers)

    assert answer.status_code == 403
    assert not (run_folder / "speaker.pid").exists()


def test_asking_for_the_head_speaks_nothing(client: TestClient, run_folder: Path) -> None:
    answer = client.head("/studio/speech?run=voice&text=refuse")

    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/wav")
    assert not (run_folder / "speaker.pid").exists()


def test_nobody_makes_a_server_with_a_password_speak_without_it(
    app: Starlette, client: TestClient, run_folder: Path
) -> None:
    app.auth, app.cookie_id, app.tokens = {"ada": "secret"}, "id", {"token": "ada"}  # type: ignore[attr-defined]

    assert client.get("/studio/speech?run=voice&text=refuse").status_code == 401
    assert not (run_folder / "speaker.pid").exists()
