"""The page on a network: what other sites, other machines and other users may not do."""

import asyncio
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.page import make_studio
from tests.helpers.page_server import PROJECT, PageServer, start_page
from webui import launch as app
from webui.routes import build_routes
from webui.security import token_auth
from webui.security.origin_check import OriginCheck
from webui.security.request_limits import MAX_FORM_BYTES, BodyLimit, UploadLimits

CANARY = "canary-3f9ab1"
_PATIENCE_S = 120
_ROUTES = [
    "/", "/config", "/theme.css", "/manifest.json", "/gradio_api/info", "/gradio_api/queue/data",
    "/gradio_api/file=x", "/gradio_api/heartbeat/x", "/login", "/assets/x.js",
]  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """A page as a newcomer starts it, but for uploads of at most 1 MiB."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "TIMBRE_AUTH_OF_PROXY"):
            patch.setenv(name, CANARY)
        folder = tmp_path_factory.mktemp("network")
        server = start_page(folder / "runs", "--max-upload", str(1 / 1024), token=True)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def address(page: PageServer) -> str:
    return page.url.partition("?")[0].rstrip("/")


@pytest.fixture(scope="module")
def token(page: PageServer) -> str:
    return page.url.partition("?token=")[2]


@pytest.fixture
def stranger(address: str) -> Iterator[httpx.Client]:
    """A browser that has never seen the token."""
    with httpx.Client(base_url=address, timeout=_PATIENCE_S) as client:
        yield client


@pytest.fixture(scope="module")
def owner(address: str, token: str) -> Iterator[httpx.Client]:
    """A browser that has opened the printed address."""
    given = {"follow_redirects": True, "timeout": _PATIENCE_S}
    with httpx.Client(base_url=address, **given) as client:
        assert client.get("/", params={"token": token}).status_code == 200
        yield client


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def _stored(page: PageServer) -> set[Path]:
    """Return the runs and the uploads; runs of other tests go on writing into their folders."""
    return {*page.runs.iterdir(), *_files(page.runs / ".page" / "cache")}


@pytest.mark.fault("F12")
def test_every_route_asks_for_the_token(stranger: httpx.Client, tmp_path: Path) -> None:
    paths = [route.path for route in build_routes(make_studio(tmp_path))] + _ROUTES

    found = {path: stranger.get(re.sub(r"{\w+}", "x", path)).status_code for path in paths}

    assert found == dict.fromkeys(paths, 401)
    for path in ("/gradio_api/upload", "/gradio_api/queue/join", "/gradio_api/call/stop_run"):
        assert stranger.post(path, json={}).status_code == 401


def test_a_person_without_the_token_is_asked_for_it(stranger: httpx.Client) -> None:
    asked = stranger.get("/", headers={"Accept": "text/html"})
    wrong = stranger.get("/?token=<b>x", headers={"Accept": "text/html"})

    assert asked.status_code == wrong.status_code == 401
    assert '<input name="token"' in asked.text
    assert "This token is wrong." in wrong.text
    assert "<b>" not in wrong.text


def test_the_printed_address_leaves_a_cookie_and_no_trace(
    stranger: httpx.Client, token: str
) -> None:
    let_in = stranger.get("//evil.example/..", params={"token": token, "tab": "live"})
    cookie = let_in.headers["set-cookie"]

    assert let_in.status_code == 303
    assert let_in.headers["location"] in ("/evil.example/..?tab=live", "/?tab=live")
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert stranger.get("/studio/runs").status_code == 200


def test_scripts_bring_the_token_in_a_header(stranger: httpx.Client, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}

    assert stranger.get("/studio/runs", headers=headers).status_code == 200
    assert stranger.get("/studio/runs").status_code == 401


@pytest.mark.fault("F15")
def test_no_secret_reaches_a_file_but_the_one_of_the_token(
    owner: httpx.Client, page: PageServer, token: str
) -> None:
    config = {"data": {"train_csv": "/a.csv"}, "training": {"steps": 1}}
    body = {"data": [config, "secret"]}
    asked = owner.post("/gradio_api/call/start_run", json=body).json()
    owner.get(f"/gradio_api/call/start_run/{asked['event_id']}")  # until it was done
    owner.get("/studio/runs?token=" + token)
    wrong = [
        owner.get("/studio/nothing"),
        owner.get("/studio/events", params={"run": "../..", "cursor": "x"}),
        owner.get("/gradio_api/file=/etc/passwd"),
        owner.post("/gradio_api/call/nothing", json={"data": [None]}),
    ]

    files = [*_files(page.runs), page.runs.parent / "server.log"]
    secret = [p for p in files if CANARY.encode() in p.read_bytes()]
    holders = [p for p in files if token.encode() in p.read_bytes()]

    assert secret == []
    assert all(answer.status_code >= 400 for answer in wrong)
    assert not any(word in answer.text for answer in wrong for word in (CANARY, token))
    assert holders == [page.runs / ".page" / "token"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600


def test_the_token_outlives_a_restart_but_not_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"

    first, second = token_auth.stored_token(path), token_auth.stored_token(path)
    path.unlink()

    assert first == second
    assert len(first) >= 32
    assert token_auth.stored_token(path) != first


@pytest.mark.parametrize("content", ["", "short", "\u00e9" * 40])
def test_a_damaged_token_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content, encoding="utf-8")

    assert len(token_auth.stored_token(tmp_path / "token")) >= 32


def test_a_password_can_be_kept_off_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMBRE_AUTH", "ada:secret")

    args = app._parse(["--host", "0.0.0.0"])

    assert args.auth == "ada:secret"
    assert "TIMBRE_AUTH" not in app.os.environ


@pytest.mark.fault("F12")
@pytest.mark.parametrize("words", [["--host", "0.0.0.0"], ["--host", "::", "--no-token"]])
def test_other_machines_need_a_password(words: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit):
        app._parse(words)

    assert "is reachable from other machines; add --auth USER:PASSWORD" in capsys.readouterr().err


# Other sites


@pytest.mark.fault("F9")
@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "evil.example:7860", ""]
)
@pytest.mark.parametrize("path", ["/", "/config", "/studio/runs"])
def test_a_name_that_was_rebound_to_this_machine_is_refused(
    owner: httpx.Client, host: str, path: str
) -> None:
    assert owner.get(path, headers={"Host": host}).status_code == 421


_FOREIGN: dict[str, dict[str, str]] = {
    "another site": {"Origin": "http://evil.example"},
    "another local port": {"Origin": "http://localhost:3000"},
    "another port of the same address": {"Origin": "http://127.0.0.1:3000"},
    "a sandboxed frame": {"Origin": "null"},
    "a form of another site": {"Sec-Fetch-Site": "cross-site"},
    "a form of another local port": {"Sec-Fetch-Site": "same-site"},
}


@pytest.mark.fault("F8", "F10")
@pytest.mark.parametrize("headers", _FOREIGN.values(), ids=_FOREIGN)
def test_other_sites_can_neither_start_nor_store_anything(
    owner: httpx.Client, page: PageServer, headers: dict[str, str]
) -> None:
    before = _stored(page)
    plain = headers | {"Content-Type": "text/plain"}
    body = {"data": [{}, "evil"]}

    answers = [
        owner.post("/gradio_api/call/start_run", json=body, headers=headers),
        owner.post("/gradio_api/call/start_run", content=json.dumps(body), headers=plain),
        owner.post("/gradio_api/queue/join", json=body | {"fn_index": 0}, headers=headers),
        owner.post("/gradio_api/upload", files={"files": b"x" * 99}, headers=headers),
    ]

    assert [answer.status_code for answer in answers] == [403] * 4
    assert _stored(page) == before


@pytest.mark.fault("F8")
@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:3000", "null"])
def test_other_sites_can_read_nothing(owner: httpx.Client, origin: str) -> None:
    assert owner.get("/studio/runs", headers={"Origin": origin}).status_code == 403
    assert owner.get("/config", headers={"Origin": origin}).status_code == 403


# Files

_PATHS = [
    "/gradio_api/file=/etc/passwd",
    "/gradio_api/file=../../../../../../etc/passwd",
    "/gradio_api/file=..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/gradio_api/file=%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/gradio_api/file=....//....//etc/passwd",
    "/gradio_api/file=C:\\Windows\\win.ini",
    "/gradio_api/file=//evil.example/share",
    "/gradio_api/file=http://127.0.0.1:1/x",
    "/gradio_api/file=file:///etc/passwd",
    "/gradio_api/file=/proc/self/environ",
    "/gradio_api/file=/proc/self/cwd",
    f"/gradio_api/file={PROJECT}/app.py",
    f"/gradio_api/file={PROJECT}/assets/demo/train.csv",
    "/gradio_api/file=.page/token",
    "/gradio_api/proxy=http://127.0.0.1:1/x",
    "/gradio_api/stream/x/../../../etc/passwd/playlist.m3u8",
    "/static/../../../../../etc/passwd",
    "/static/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/assets/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/custom_component/x/component/..%2f..%2f..%2fetc%2fpasswd",
    "/studio/page/..%2f..%2fapp.py",
    "/studio/runs/..%2f..%2f.page/log",
    "/studio/runs/.page/log",
    "/file=/etc/passwd",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/gradio_api/openapi.json",
]


@pytest.mark.fault("F11")
@pytest.mark.parametrize("path", _PATHS)
def test_no_file_and_no_other_server_is_reached(
    owner: httpx.Client, page: PageServer, token: str, path: str
) -> None:
    paths = [path, path.replace(".page", str(page.runs / ".page"))]

    answers = [owner.get(path) for path in paths]

    assert {answer.status_code for answer in answers} <= {400, 403, 404, 422}
    for answer in answers:
        assert not any(word in answer.text for word in ("root:", CANARY, token, "Traceback"))


@pytest.mark.fault("F11")
def test_a_file_that_an_event_names_is_not_copied(owner: httpx.Client, page: PageServer) -> None:
    names = {item["id"]: item for item in owner.get("/config").json()["dependencies"]}
    upload = next(
        i for i, item in names.items() if (item["targets"] or [[0, ""]])[0][1] == "upload"
    )
    file = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    body = {"data": [[file], ""], "fn_index": upload, "session_hash": "x"}

    answer = owner.post("/gradio_api/run/predict", json=body)

    assert answer.status_code >= 400
    assert not any("passwd" in path.name for path in _files(page.runs))


@pytest.mark.fault("F11")
def test_an_error_tells_the_page_nothing_of_the_inside(owner: httpx.Client) -> None:
    for number in range(3):
        body = {"data": [{"not": "expected"}] * 40, "fn_index": number, "session_hash": "x"}
        answer = owner.post("/gradio_api/run/predict", json=body)

        assert "Traceback" not in answer.text
        assert str(PROJECT) not in answer.text


@pytest.mark.parametrize("name", ["page.html", "page.svg", "../../../escaped.bin"])
def test_what_was_uploaded_comes_back_as_a_download_only(
    owner: httpx.Client, page: PageServer, name: str
) -> None:
    stored = owner.post("/gradio_api/upload", files={"files": (name, b"<script>1</script>")}).json()

    answer = owner.get(f"/gradio_api/file={stored[0]}")

    assert Path(stored[0]).is_relative_to(page.runs / ".page" / "cache")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.fault("F10")
def test_an_upload_above_the_limit_is_refused_and_not_kept(
    owner: httpx.Client, page: PageServer
) -> None:
    before = _stored(page)

    answer = owner.post("/gradio_api/upload", files={"files": bytes(3 * 2**20)})

    assert answer.status_code == 413
    assert "larger than 0.000977 GB" in answer.text
    assert _stored(page) == before


def test_every_answer_forbids_what_other_sites_could_use(owner: httpx.Client) -> None:
    for path in ("/", "/studio/runs", "/nowhere"):
        headers = owner.get(path).headers
        policy = headers["content-security-policy"]

        assert headers["x-frame-options"] == "SAMEORIGIN"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "connect-src 'self'" in policy
        assert "script-src-attr 'none'" in policy


# Limits, on their own


def _exchange(
    allowance: UploadLimits, path: str, *parts: bytes, headers: dict[str, str] | None = None
) -> tuple[list[Any], str]:
    """Return what is sent to a client that uploads parts, and what the app heard."""
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    sent: list[Any] = []
    heard: list[str] = []

    async def receive() -> Any:
        if not waiting:
            await asyncio.Event().wait()  # A client that says nothing any more.
        return waiting.pop(0)

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            heard.append(message["type"])
            if message["type"] == "http.disconnect":
                return

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw}
    asyncio.run(BodyLimit(inner, allowance)(scope, receive, send))
    return sent, " ".join(heard)


class _Full(UploadLimits):
    def free_bytes(self) -> int:
        return 10


@pytest.mark.fault("F10")
def test_an_upload_that_does_not_fit_on_the_disk_is_refused_before_it_starts(
    tmp_path: Path,
) -> None:
    headers = {"Content-Length": "11"}

    sent, heard = _exchange(_Full(99, tmp_path), "/gradio_api/upload", headers=headers)

    assert sent[0]["status"] == 413
    assert b"doesn't fit" in sent[1]["body"]
    assert heard == ""


@pytest.mark.fault("F10")
@pytest.mark.parametrize("length", ["x", "-1", str(MAX_FORM_BYTES + 1)])
def test_a_body_of_unknown_or_absurd_length_is_refused(tmp_path: Path, length: str) -> None:
    sent, _ = _exchange(UploadLimits(9, tmp_path), "/other", headers={"Content-Length": length})

    assert sent[0]["status"] == 413


@pytest.mark.fault("F10")
def test_a_body_without_a_length_is_counted_as_it_comes(tmp_path: Path) -> None:
    sent, heard = _exchange(_Full(99, tmp_path), "/gradio_api/upload", b"123456", b"789012")

    assert sent[0]["status"] == 413
    assert heard == "http.request http.disconnect"


@pytest.mark.fault("F10")
def test_an_upload_that_stands_still_is_ended(tmp_path: Path) -> None:
    allowance = UploadLimits(99, tmp_path, timeout_s=0.01)

    sent, heard = _exchange(allowance, "/gradio_api/upload", b"123")

    assert sent[0]["status"] == 408
    assert heard == "http.request http.disconnect"


@pytest.mark.fault("F1")
def test_a_client_that_never_reads_is_dropped(tmp_path: Path) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def stuck(message: Any) -> None:
        await asyncio.Event().wait()

    limits = BodyLimit(answer, UploadLimits(99, tmp_path, timeout_s=0.01))
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}

    with pytest.raises(OSError, match="did not read"):
        asyncio.run(limits(scope, stuck, stuck))


def test_no_socket_is_opened() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def never(*_: Any) -> None:
        raise AssertionError

    asyncio.run(OriginCheck(never)({"type": "websocket"}, never, send))

    assert sent == ["websocket.close"]


def test_the_browser_is_sent_to_the_address_with_the_token(page: PageServer) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{40,}", page.url)
