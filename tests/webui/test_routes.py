"""The routes: what the page polls, read-only, closed without login, nothing but runs."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from tests.helpers.page import make_studio
from trainer import RunConfig
from trainer.core.events import (
    CheckpointSaved,
    PhaseChanged,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)
from trainer.core.metrics import METRICS, Metric
from trainer.core.run_config import TrainingConfig
from trainer.runs.run import Run, RunStatus
from webui.routes import build_routes
from webui.security.login import is_logged_in
from webui.security.origin_check import OriginCheck
from webui.status import actions, describe, duration_text
from webui.studio import Studio

STATES = (
    "created", "starting", "running", "stopping", "stopped", "finished", "failed", "interrupted",
)  # fmt: skip


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    return make_studio(tmp_path)


@pytest.fixture
def run(studio: Studio) -> Run:
    config = RunConfig(training=TrainingConfig(steps=100))
    run = Run.create(studio.library.folder / "voice", config)
    run.events.append(RunStarted(1, 100, 10, {"device": "cpu"}, {}))
    for step in range(1, 31):
        run.events.append(StepDone(step, {"train/loss": 1 / step, "perf/s_per_step": 0.5}))
    run.events.append(ValidationDone(20, {"val/loss": 0.25}))
    run.events.append(CheckpointSaved(20, "checkpoints/step-00000020", True, 10, 0.1))
    return run


@pytest.fixture
def client(studio: Studio) -> Iterator[TestClient]:
    app = Starlette(routes=build_routes(studio), middleware=[Middleware(OriginCheck)])
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def test_an_empty_cursor_returns_the_whole_run(client: TestClient, run: Run) -> None:
    answer = client.get("/studio/runs/voice/rows?cursor=").json()

    assert answer["reset"]
    assert [row[0] for row in answer["steps"]["rows"]] == list(range(1, 31))
    assert [mark["kind"] for mark in answer["marks"]] == ["started", "checkpoint"]
    assert answer["status"]["total_steps"] == 100


def test_a_cursor_returns_only_what_came_after_it(client: TestClient, run: Run) -> None:
    cursor = client.get("/studio/runs/voice/rows?cursor=").json()["cursor"]
    run.events.append(StepDone(31, {"train/loss": 0.5}))

    answer = client.get(f"/studio/runs/voice/rows?cursor={cursor}").json()

    assert not answer["reset"]
    assert [row[0] for row in answer["steps"]["rows"]] == [31]
    assert answer["marks"] == []


def test_a_cursor_at_the_end_returns_nothing_new(client: TestClient, run: Run) -> None:
    cursor = client.get("/studio/runs/voice/rows?cursor=").json()["cursor"]

    answer = client.get(f"/studio/runs/voice/rows?cursor={cursor}")

    assert answer.json()["steps"]["rows"] == []
    assert len(answer.content) < 2000


def test_a_resumed_run_starts_the_page_afresh(client: TestClient, run: Run) -> None:
    cursor = client.get("/studio/runs/voice/rows?cursor=").json()["cursor"]
    run.events.append(RunStarted(21, 100, 10))

    answer = client.get(f"/studio/runs/voice/rows?cursor={cursor}").json()

    assert answer["reset"]
    assert answer["steps"]["rows"][-1][0] == 20


@pytest.mark.fault("F2")
def test_a_long_run_is_thinned_but_keeps_its_spike(client: TestClient, run: Run) -> None:
    for step in range(31, 5001):
        run.events.append(StepDone(step, {"train/loss": 99.0 if step == 3333 else 1.0}))

    answer = client.get("/studio/runs/voice/rows?cursor=&max=100").json()

    losses = [
        row[answer["steps"]["columns"].index("train/loss")] for row in answer["steps"]["rows"]
    ]
    assert len(losses) < 200
    assert 99.0 in losses


def test_a_zoom_returns_every_row_of_its_range(client: TestClient, run: Run) -> None:
    answer = client.get("/studio/runs/voice/rows?from=5&to=9").json()

    assert [row[0] for row in answer["steps"]["rows"]] == [5, 6, 7, 8, 9]


def test_numbers_that_are_none_travel_as_null(client: TestClient, run: Run) -> None:
    run.events.append(StepDone(31, {"train/loss": math.nan}))

    answer = client.get("/studio/runs/voice/rows?cursor=").json()

    loss = answer["steps"]["columns"].index("train/loss")
    assert answer["steps"]["rows"][-1][loss] is None


@pytest.mark.parametrize(
    "path",
    ["rows", "status", "config", "log", "metrics.csv", "curves.png", "previews", "previews/a.wav"],
)
def test_an_unknown_run_is_a_sentence(client: TestClient, path: str) -> None:
    answer = client.get(f"/studio/runs/nobody/{path}")

    assert answer.status_code == 404
    assert "no run named 'nobody'" in answer.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "..%2f..%2fetc/rows",
        "voice/previews/..%2frun.json",
        "voice/previews/%2fetc%2fpasswd",
        "voice/previews/step-1.wav",
        "voice/curves.exe",
    ],
)
@pytest.mark.fault("F11")
def test_paths_lead_nowhere_but_to_what_is_listed(client: TestClient, run: Run, path: str) -> None:
    assert client.get(f"/studio/runs/{path}").status_code == 404


@pytest.mark.parametrize("query", ["max=lots", "from=-1", "from=1&to=x"])
def test_bad_numbers_are_refused_in_a_sentence(client: TestClient, run: Run, query: str) -> None:
    answer = client.get(f"/studio/runs/voice/rows?{query}")

    assert answer.status_code == 400
    assert "integer" in answer.json()["error"]


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_routes_change_nothing(client: TestClient, run: Run, method: str) -> None:
    assert client.request(method, "/studio/runs/voice/rows").status_code == 405


def test_previews_are_listed_and_played_from_any_place(client: TestClient, run: Run) -> None:
    (run.folder / "previews" / "step-00000010.wav").write_bytes(b"RIFF0123456789")

    listed = client.get("/studio/runs/voice/previews").json()
    part = client.get(
        f"/studio/runs/voice/previews/{listed['files'][0]}", headers={"Range": "bytes=4-7"}
    )

    assert (part.status_code, part.content) == (206, b"0123")
    assert part.headers["content-type"] == "audio/wav"


def test_a_drawn_preview_is_a_picture_in_which_nothing_runs(client: TestClient, run: Run) -> None:
    (run.folder / "previews" / "step-00000010.svg").write_text("<svg/>")

    answer = client.get("/studio/runs/voice/previews/step-00000010.svg")

    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"


def test_the_table_has_the_best_eval_and_the_usual_pace(client: TestClient, run: Run) -> None:
    row = client.get("/studio/runs").json()["runs"][0]

    assert (row["best_eval"], row["median_s_per_step"]) == (0.25, 0.5)


def test_a_run_that_does_not_train_is_read_once(client: TestClient, run: Run) -> None:
    before = client.get("/studio/runs").json()["runs"][0]["step"]
    run.events.append(StepDone(31, {"train/loss": 0.5}))
    after = client.get("/studio/runs").json()["runs"][0]["step"]

    assert (before, after) == (30, 31)


def test_a_run_with_a_damaged_configuration_is_shown_not_hidden(
    client: TestClient, run: Run
) -> None:
    (run.folder / "run.json").write_text("{", encoding="utf-8")

    row = client.get("/studio/runs").json()["runs"][0]

    assert (row["state"], "not a JSON file" in row["reason"]) == ("unreadable", True)


def test_only_runs_in_training_are_active(client: TestClient, run: Run) -> None:
    before = client.get("/studio/active").json()["active"]
    lock = run.take()
    during = client.get("/studio/active").json()["active"]
    lock.release()

    assert (before, [row["state"] for row in during]) == ([], ["running"])


def test_metrics_can_be_downloaded_as_a_table(client: TestClient, run: Run) -> None:
    lines = client.get("/studio/runs/voice/metrics.csv").text.splitlines()

    assert lines[0].split(",")[0] == "step"
    assert len(lines) == 31
    assert lines[20].endswith("0.25")


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_curves_can_be_downloaded_as_a_picture(
    client: TestClient, run: Run, kind: str, start: bytes
) -> None:
    answer = client.get(f"/studio/runs/voice/curves.{kind}")

    assert answer.content.startswith(start)


def test_the_settings_and_the_log_of_a_run_are_its_own(client: TestClient, run: Run) -> None:
    (run.folder / "log.txt").write_text("hello\n", encoding="utf-8")

    settings = client.get("/studio/runs/voice/config").json()

    assert settings["training"]["steps"] == 100
    assert client.get("/studio/runs/voice/log").text == "hello"


def test_the_style_sheet_is_served_and_nothing_beside_it(client: TestClient) -> None:
    assert "text/css" in client.get("/studio/page/page.css").headers["content-type"]
    assert client.get("/studio/page/..%2fREADME.md").status_code == 404


def test_with_a_password_every_route_asks_for_the_login(studio: Studio, run: Run) -> None:
    app = Starlette(routes=build_routes(studio))
    app.auth, app.cookie_id, app.tokens = {"ada": "secret"}, "id", {"token": "ada"}  # type: ignore[attr-defined]
    closed, opened = TestClient(app), TestClient(app, cookies={"access-token-id": "token"})
    paths = ["active", "runs", "runs/voice/rows", "runs/voice/log", "runs/voice/previews"]

    codes = [closed.get(f"/studio/{path}").status_code for path in paths]

    assert codes == [401] * len(paths)
    assert [opened.get(f"/studio/{path}").status_code for path in paths] == [200] * len(paths)


def test_a_wrong_token_is_no_login() -> None:
    app = SimpleNamespace(auth={"a": "b"}, cookie_id="id", tokens={"token": "a"})
    request = SimpleNamespace(app=app, cookies={"access-token-id": "guess"})

    assert not is_logged_in(request)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "localhost:7860"}, 200),
        ({"host": "192.168.1.5:7860"}, 200),
        ({"host": "[::1]:7860"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "http://localhost"}, 200),
        ({"origin": "null"}, 403),
    ],
)
@pytest.mark.fault("F8", "F9")
def test_foreign_hosts_and_origins_are_refused(
    client: TestClient, headers: dict[str, str], code: int
) -> None:
    assert client.get("/studio/active", headers=headers).status_code == code


def test_a_request_that_changes_something_must_come_from_the_page(client: TestClient) -> None:
    answer = client.post("/studio/active", headers={"sec-fetch-site": "cross-site"})

    assert answer.status_code == 403


def test_answers_forbid_framing_and_sniffing(client: TestClient) -> None:
    headers = client.get("/studio/active").headers

    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "SAMEORIGIN"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (4.2, "4 s"), (89, "89 s"), (600, "10 min"), (11100, "3 h 05 min"),
     (200_000, "2 d 7 h")],
)  # fmt: skip
def test_lengths_of_time_are_said_in_at_most_two_units(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


def test_metrics_are_given_as_columns_of_json(client: TestClient, run: Run) -> None:
    run.events.append(StepDone(31, {"train/loss": math.nan}))

    answer = client.get("/studio/runs/voice/metrics.json")

    assert answer.json()["steps"]["train/loss"][-2:] == [1 / 30, None]
    assert answer.json()["validations"] == {"step": [20.0], "time": [ANY], "val/loss": [0.25]}
    assert answer.headers["content-disposition"].endswith("voice.json")


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
@pytest.mark.parametrize("metric", [name for name in METRICS if METRICS[name].compared])
def test_runs_are_drawn_in_one_picture(
    client: TestClient, run: Run, studio: Studio, kind: str, start: bytes, metric: str
) -> None:
    Run.create(studio.library.folder / "_$price$", RunConfig())

    answer = client.get(
        f"/studio/comparison.{kind}", params={"run": ["voice", "_$price$"], "metric": metric}
    )

    assert answer.content.startswith(start)


def test_a_new_metric_is_compared_by_its_line_in_the_registry_alone(
    client: TestClient, run: Run, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Metric("train/new", "New number", "dB", compared=True)
    monkeypatch.setitem(METRICS, new.name, new)
    run.events.append(StepDone(31, {new.name: 2.0}))
    Run.create(studio.library.folder / "other", RunConfig())
    query = {"run": ["voice", "other"], "metric": new.name}

    answer = client.get("/studio/comparison.svg", params=query)

    assert answer.status_code == 200
    assert "New number (dB)" in answer.text


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("run=voice", 400, "two to six"),
        ("run=voice&run=voice", 400, "two to six"),
        ("run=voice&run=nobody", 404, "no run named"),
        ("run=voice&run=x&metric=secret", 400, "Unknown metric"),
    ],
)
def test_a_comparison_of_nothing_is_refused(
    client: TestClient, run: Run, query: str, status: int, words: str
) -> None:
    answer = client.get(f"/studio/comparison.png?{query}")

    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_the_table_tells_of_the_queue_and_the_trash(
    client: TestClient, run: Run, studio: Studio
) -> None:
    studio.library.enqueue("next", RunConfig())
    studio.library.queue.pause(True)
    run.events.append(RunFinished("stopped", 30))
    studio.library.discard("voice")

    answer = client.get("/studio/runs").json()
    trash = client.get("/studio/trash").json()["discarded"]

    assert answer["queue"] == {"paused": True, "names": ["next"]}
    assert (answer["discarded"], [row["name"] for row in answer["runs"]]) == (1, ["next"])
    assert trash[0]["name"] == "voice"


@pytest.mark.parametrize("state", STATES)
def test_stop_is_offered_only_while_something_trains(state: str) -> None:
    assert ("stop" in actions(state)) == (state in ("starting", "running"))
    assert not {"stop", "resume"} <= set(actions(state))


@pytest.mark.fault("A6")
def test_what_hangs_or_does_not_stop_can_be_ended_at_once() -> None:
    assert {"stop", "kill"} <= set(actions("stalled"))
    assert actions("stopping") == ("kill",)
    assert "kill" not in actions("running") + actions("stopped")


def test_the_phase_is_told_until_the_first_step(studio: Studio) -> None:
    run = Run.create(studio.library.folder / "young", RunConfig())
    lock = run.take()
    run.events.append(PhaseChanged("Computing features", 3, 12))

    told = describe(run.status())
    lock.release()

    assert (told["state"], told["phase"]) == ("starting", "Computing features 3/12")


def test_what_a_run_died_of_is_told_with_the_remedy(run: Run) -> None:
    run.events.append(RunFinished("failed", 30, "Out of memory.", "Halve the batch."))

    told = describe(run.status())

    assert (told["reason"], told["remedy"], told["percent"]) == (
        "Out of memory.", "Halve the batch.", 30.0,
    )  # fmt: skip
    assert json.dumps(told)


def test_a_run_without_steps_is_at_zero_percent() -> None:
    status = RunStatus(
        name="a", state="created", step=0, total_steps=0, metrics={}, phase="", phase_done=0,
        phase_total=0, eta_s=None, steps_per_epoch=0, reason="", remedy="", created_at=0.0,
        updated_at=0.0,
    )  # fmt: skip

    assert describe(status)["percent"] == 0.0
