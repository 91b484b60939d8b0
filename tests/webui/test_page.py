"""The page as scripts and people meet it: published endpoints, private ones, uploads, refusals."""

import asyncio
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.helpers.clips import write_list, write_tone
from tests.helpers.page import make_studio
from tests.helpers.page_server import PROJECT, PageServer, start_page
from trainer import RunConfig
from trainer.core.errors import DataError, RunError
from trainer.core.run_config import DataConfig, TrainingConfig
from trainer.runs.run import Run
from webui import studio as studio_module
from webui.actions import perform
from webui.api import export_run
from webui.jobs import synthesis
from webui.jobs.listening_test import read_clips
from webui.page import build_page
from webui.studio import demo_config
from webui.tabs.listen import original_audio
from webui.tabs.start import start_demo

QUIET: dict[str, Any] = {
    "verbose": False,
    "analytics_enabled": False,
    "httpx_kwargs": {"timeout": 120},
}
PUBLIC = {"/start_run", "/stop_run", "/list_runs", "/check_dataset", "/speak", "/export"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    server = start_page(tmp_path_factory.mktemp("page") / "runs")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(page: PageServer) -> Client:
    return Client(page.url, **QUIET)


@pytest.fixture
def clips_csv(tmp_path: Path) -> Path:
    """A list of two clips that are there and one that is not."""
    rows = [f"{write_tone(tmp_path / name).name}|{name} speaks" for name in ("a.wav", "b.wav")]
    return write_list(tmp_path / "train.csv", *rows, "missing.wav|nobody speaks")


def _config(steps: int) -> dict[str, Any]:
    training = TrainingConfig(steps=steps)
    return RunConfig(data=DataConfig(train_csv="/a.csv"), training=training).to_json()


def _wait(run: Run, is_so: Callable[[Run], bool]) -> None:
    for _ in run.follow(poll_s=0.02):
        if is_so(run):
            return
    assert is_so(run)


def test_exactly_six_endpoints_are_published(client: Client) -> None:
    api: Any = client.view_api(return_format="dict", print_info=False)

    assert set(api["named_endpoints"]) == PUBLIC
    assert api["unnamed_endpoints"] == {}


def test_a_run_is_started_listed_and_stopped(client: Client, page: PageServer) -> None:
    name = client.predict(_config(100_000), "voice", api_name="/start_run")["run"]
    run = Run.open(page.runs / name)
    _wait(run, lambda run: run.status().step > 3)
    listed = client.predict(api_name="/list_runs")["runs"]
    client.predict(name, api_name="/stop_run")

    status = run.wait(poll_s=0.05)

    assert (listed[0]["name"], listed[0]["state"]) == (name, "running")
    assert status.state == "stopped"
    assert run.checkpoints()[-1].step == status.step


def test_hostile_values_reach_no_handler_unchecked(page: PageServer) -> None:
    with urllib.request.urlopen(page.url + "config") as answer:
        handlers = [one for one in json.load(answer)["dependencies"] if one["backend_fn"]]

    # Handlers take the form as text, so this one comes as far as the values of fields.
    form = {"base": False, "data-train_csv": "\0", "training-steps": "1e999", "family-choice": ""}
    hostile = (None, "../../etc/passwd", ["x"] * 3, {"a": -1e308}, json.dumps(form))

    for handler in handlers:
        for value in hostile if handler["inputs"] else ():
            event = {name: value for name in ("action", "run", "count", "row_value", "index")}
            _send(page, handler["id"], [value] * len(handler["inputs"]), event)

    log = (page.runs.parent / "server.log").read_text(encoding="utf-8")
    ours = re.findall(r'File "[^"]*/(?:webui|trainer)/[^"]*", line .*\n.*', log)
    assert len(handlers) > 50
    assert ours == []


def _send(page: PageServer, handler: int, data: list[Any], event: dict[str, Any]) -> None:
    """Run a handler as anybody can who reaches the page, by its number."""
    asked = {"fn_index": handler, "data": data, "event_data": event, "session_hash": "x"}
    request = urllib.request.Request(
        page.url + "gradio_api/run/predict",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        urllib.request.urlopen(request).close()
    except urllib.error.HTTPError as error:
        error.close()


def test_a_press_counts_while_the_answer_to_the_one_before_is_on_its_way(page: PageServer) -> None:
    with urllib.request.urlopen(page.url + "config") as answer:
        config = json.load(answer)
    names = {part["id"]: part["props"].get("elem_id") for part in config["components"]}

    modes = {
        names[target]: handler["trigger_mode"]
        for handler in config["dependencies"]
        for target, event in handler["targets"]
        if event == "click" and names.get(target) in ("recent", "live", "court", "runs", "race")
    }

    assert modes == dict.fromkeys(("recent", "live", "court", "runs", "race"), "multiple")


def test_a_name_that_is_taken_gets_a_number(client: Client) -> None:
    names = [client.predict(_config(1), "twice", api_name="/start_run")["run"] for _ in range(2)]

    assert names == ["twice", "twice-2"]


@pytest.mark.fault("B14")
def test_a_name_cannot_lead_out_of_the_folder_of_runs(client: Client, page: PageServer) -> None:
    name = client.predict(_config(1), "../$(touch pwned)/x", api_name="/start_run")["run"]

    assert (page.runs / name / "run.json").is_file()
    assert not list(page.runs.parent.rglob("pwned"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"training": {"steps": "many"}}, "whole number"),
        ({"training": {"stepz": 1}}, "Did you mean 'steps'"),
        ({"optimizer": "adamw", "colour": 1}, "not a known part"),
        ({"optimizer": "adamw"}, "no training data"),
        ({"data": {"train_csv": "/a.csv"}, "optimizer": "adamv"}, "Did you mean 'adamw'"),
    ],
)
def test_a_bad_configuration_is_refused_in_a_sentence(
    client: Client, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(AppError, match=words):
        client.predict(config, "bad", api_name="/start_run")


def test_a_run_that_does_not_train_cannot_be_stopped(client: Client) -> None:
    with pytest.raises(AppError, match="no run named 'nobody'"):
        client.predict("nobody", api_name="/stop_run")


def test_a_dataset_is_checked_with_its_problems(client: Client, clips_csv: Path) -> None:
    found = client.predict(str(clips_csv), "", "en", api_name="/check_dataset")

    assert (found["num_clips"], found["num_problems"]) == (2, 1)
    assert "missing.wav" in found["problems"][0]


def test_a_dataset_that_is_not_there_is_a_sentence(client: Client, tmp_path: Path) -> None:
    with pytest.raises(AppError, match=r"nothing\.csv"):
        client.predict(str(tmp_path / "nothing.csv"), "", "en", api_name="/check_dataset")


@pytest.mark.parametrize("checkpoint", ["best", "../../x"])
def test_speaking_needs_a_checkpoint(client: Client, checkpoint: str) -> None:
    name = client.predict(_config(1), "mute", api_name="/start_run")["run"]

    with pytest.raises(AppError, match="checkpoint"):
        client.predict(name, "Hello", "", checkpoint, api_name="/speak")


@pytest.mark.parametrize(
    "path",
    [
        "gradio_api/file=/etc/passwd",
        "gradio_api/file=../../app.py",
        f"gradio_api/file={PROJECT / 'app.py'}",
        f"gradio_api/file={PROJECT / 'assets' / 'demo' / 'train.csv'}",
        "file=/etc/passwd",
        "docs",
        "openapi.json",
    ],
)
@pytest.mark.fault("F11")
def test_no_file_of_this_computer_is_served(page: PageServer, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(page.url + path)

    assert caught.value.code in (403, 404)
    caught.value.close()


@pytest.mark.fault("F8")
def test_an_event_from_another_site_is_refused(page: PageServer) -> None:
    body = json.dumps({"data": ["x"]}).encode()
    headers = {"Origin": "http://evil.example", "Content-Type": "application/json"}
    request = urllib.request.Request(page.url + "gradio_api/call/stop_run", body, headers)

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)

    assert caught.value.code == 403
    caught.value.close()


def test_the_server_stands_in_an_empty_folder(page: PageServer) -> None:
    folder = Path(f"/proc/{page.process.pid}/cwd").resolve()

    assert folder.parent == page.runs / ".page"


def test_with_a_password_our_routes_ask_for_it_too(tmp_path: Path) -> None:
    server = start_page(tmp_path / "runs", "--auth", "ada:secret")
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(server.url + "studio/runs")
        client = Client(server.url, auth=("ada", "secret"), **QUIET)
        cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        request = urllib.request.Request(server.url + "studio/runs", headers={"Cookie": cookies})
        with urllib.request.urlopen(request) as answer:
            opened = json.load(answer)
    finally:
        server.stop()

    assert caught.value.code == 401
    caught.value.close()
    assert opened["runs"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "--auth"),
        (["--auth", "ada"], "USER:PASSWORD"),
        (["--auth", ":secret"], "USER:PASSWORD"),
    ],
)
@pytest.mark.fault("F12")
def test_the_page_is_not_opened_to_others_without_a_password(words: list[str], said: str) -> None:
    command = [sys.executable, str(PROJECT / "app.py"), *words]

    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert said in ended.stderr


def test_no_part_of_the_page_keeps_a_connection_open(tmp_path: Path) -> None:
    async def build() -> Any:
        return build_page(make_studio(tmp_path))

    kinds = {type(block).__name__ for block in asyncio.run(build()).blocks.values()}
    assert "Button" in kinds
    assert "State" not in kinds
    assert "Timer" not in kinds


def test_the_page_stays_light(tmp_path: Path) -> None:
    async def build() -> Any:
        return build_page(make_studio(tmp_path)).get_config_file()

    config = asyncio.run(build())

    # Each option is a field of the page's own; see docs/decisions/0104-light-form.md.
    assert len(config["components"]) < 300
    assert max(len(handler["inputs"]) for handler in config["dependencies"]) < 80
    assert len(orjson.dumps(config, default=str)) < 250_000


def test_clients_are_told_how_to_call_what_they_may_call(client: Client) -> None:
    told = client.view_api(return_format="dict", print_info=False)

    speak = told["named_endpoints"]["/speak"]
    assert [one["component"] for one in speak["parameters"]] == [
        "Dropdown", "Textbox", "Dropdown", "Dropdown",
    ]  # fmt: skip
    assert speak["returns"][0]["component"] == "Audio"


def test_a_request_to_a_run_that_does_not_train_is_refused(tmp_path: Path) -> None:
    studio = make_studio(tmp_path)
    Run.create(studio.library.folder / "voice", RunConfig())

    with pytest.raises(RunError, match="is not training"):
        perform(studio, "stop", "voice")


@pytest.mark.parametrize(
    ("action", "name", "count", "words"),
    [
        ("explode", "voice", "", "Unknown action"),
        ("request", "voice", "", "Unknown action"),
        ("more", "voice", "-5", "not a valid step count"),
        ("more", "voice", "1e9", "not a valid step count"),
        ("more", "voice", "\u0665", "not a valid step count"),
        ("more", "voice", "0", "enter at least 1"),
        ("more", "voice", "999999999", "at most"),
        ("more", "../voice", "5", "no run named"),
        ("discard", "../uploads", "", "no run named"),
        ("queue", "nobody", "", "no run named"),
        ("kill", "voice", "", "not being trained"),
        ("earlier", "voice", "", "no longer in the queue"),
        ("give_back", "../runs/voice", "", "in the trash"),
        ("delete", ".", "", "in the trash"),
    ],
)
def test_buttons_check_what_they_are_given(
    tmp_path: Path, action: str, name: str, count: str, words: str
) -> None:
    studio = make_studio(tmp_path)
    Run.create(studio.library.folder / "voice", RunConfig())

    with pytest.raises(RunError, match=words):
        perform(studio, action, name, count)

    assert studio.library.names() == ["voice"]
    assert (tmp_path / "uploads").is_dir()


def test_buttons_move_runs_through_queue_and_trash(tmp_path: Path) -> None:
    studio = make_studio(tmp_path)
    library = studio.library
    for name in ("a", "b"):
        Run.create(library.folder / name, RunConfig())
        perform(studio, "queue", name)
    perform(studio, "later", "a")
    perform(studio, "pause", "")
    perform(studio, "unqueue", "a")
    waiting = ([entry.name for entry in library.queue.waiting()], library.queue.is_paused)
    perform(studio, "continue", "")

    said = perform(studio, "discard", "b")
    key = library.trash.contents()[0].key
    back = perform(studio, "give_back", key)

    assert waiting == (["b"], True)
    assert not library.queue.is_paused
    assert "moved to the trash" in said
    assert back == "b was restored."


def test_an_export_in_bf16_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[list[str]] = []
    monkeypatch.setattr(synthesis, "_run_trainer", said.append)
    studio = make_studio(tmp_path)
    Run.create(studio.library.folder / "voice", RunConfig())

    folders = [export_run(studio, "voice", "best", bf16=bf16) for bf16 in (False, True)]

    assert [folder.name for folder in folders] == ["best", "best-bf16"]
    assert ["--bf16" in words for words in said] == [False, True]


def test_the_demo_trains_on_the_demo_clips() -> None:
    config = demo_config()

    assert config.training.steps == 300
    assert Path(config.data.train_csv).is_file()
    assert Path(config.data.eval_csv).is_file()


def test_a_demo_that_trains_already_is_shown_not_started_again(tmp_path: Path) -> None:
    studio = make_studio(tmp_path)
    lock = Run.create(studio.library.folder / "demo-voice", RunConfig()).take()

    shown = start_demo(studio)
    lock.release()

    assert (shown, studio.library.names()) == ("demo-voice", ["demo-voice"])


def test_a_demo_without_its_clips_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studio_module, "ASSETS", tmp_path)

    with pytest.raises(DataError, match="demo clips are missing"):
        demo_config()


def test_typed_paths_start_where_the_server_was_started(tmp_path: Path, clips_csv: Path) -> None:
    studio = make_studio(tmp_path)

    manifest = studio.read_manifest(DataConfig(train_csv=clips_csv.name))

    assert len(manifest.clips) == 2


def test_a_manifest_is_read_again_only_when_asked(tmp_path: Path, clips_csv: Path) -> None:
    studio = make_studio(tmp_path)
    data = DataConfig(train_csv=str(clips_csv))
    first = studio.read_manifest(data)
    write_list(clips_csv, "a.wav|hello")

    again, fresh = studio.read_manifest(data), studio.read_manifest(data, fresh=True)

    assert again is first
    assert len(fresh.clips) == 1


@pytest.mark.parametrize("checkpoint", ["worst", "-1", "../x", ""])
def test_only_checkpoints_can_be_named(tmp_path: Path, checkpoint: str) -> None:
    studio = make_studio(tmp_path)
    run = Run.create(studio.library.folder / "voice", RunConfig())

    with pytest.raises(RunError, match="not a checkpoint"):
        synthesis.speak(run, "Hello", speaker="", checkpoint=checkpoint, out=tmp_path / "x.wav")
    with pytest.raises(RunError, match="not a checkpoint"):
        export_run(studio, "voice", checkpoint)


def test_the_recordings_of_a_run_can_be_heard(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    path = write_tone(tmp_path / "a.wav")
    clip = {"id": "1", "audio_path": str(path), "text": "a", "speaker": "ada", "split": "val"}
    other = clip | {"id": "2", "audio_path": str(tmp_path / "gone.wav"), "split": "train"}
    (run.folder / "clips.json").write_text(json.dumps({"clips": [other, clip]}), encoding="utf-8")

    sample_rate, wave = original_audio(run, "1")

    assert (sample_rate, len(wave)) == (16000, 16000)
    assert [clip["id"] for clip in read_clips(run)] == ["1", "2"]
    with pytest.raises(DataError, match="cannot be read"):
        original_audio(run, "2")
    with pytest.raises(DataError, match="no such clip"):
        original_audio(run, "3")
