"""Who receives the events of a training process, and that one more is one more entry of a list."""

import threading
from pathlib import Path

from tests.helpers.toy import make_setup
from trainer.core.events import Event, Notice, Publisher, StepDone
from trainer.core.run_config import RunConfig
from trainer.core.train_state import World
from trainer.runs.heartbeat import Heartbeat
from trainer.runs.locks import ProcessIdentity
from trainer.runs.run import Run
from trainer.training.loop import train
from trainer.worker.subscribers import process_subscribers, training_subscribers


def _heartbeat(run: Run) -> Heartbeat:
    heartbeat = Heartbeat(run.folder, ProcessIdentity(1, 0.0, ""))
    heartbeat.of_thread(threading.get_ident())
    return heartbeat


def test_the_log_holds_an_event_before_anything_reacts_to_it(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    logged_before: list[list[Event]] = []

    def listen(event: Event) -> None:
        logged_before.append([logged.event for logged in run.events.follow()])

    Publisher(*process_subscribers(run, World(), _heartbeat(run), listen))(StepDone(1, {}))

    assert logged_before == [[StepDone(1, {})]]


def test_only_the_main_process_logs_and_reports(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    heard: list[Event] = []
    second = World(rank=1, size=2)
    state = make_setup(run.folder)
    state.world = second

    Publisher(*process_subscribers(run, second, _heartbeat(run), heard.append))(StepDone(1, {}))

    assert heard == list(run.events.follow()) == []
    assert training_subscribers(state, {}, {}) == []


def test_a_new_subscriber_is_one_function_that_nobody_else_knows_of(tmp_path: Path) -> None:
    def report_halves(event: Event) -> list[Event]:
        is_half = isinstance(event, StepDone) and event.step == 6
        return [Notice("info", "Half of the run is done.")] if is_half else []

    run = Run.create(tmp_path / "voice", RunConfig())
    state = make_setup(run.folder, steps=12)
    known = process_subscribers(run, World(), _heartbeat(run), None)

    train(state, Publisher(*known, *training_subscribers(state, {}, {}), report_halves))

    logged = [each.event for each in run.events.follow()]
    assert [event.step for event in logged if isinstance(event, StepDone)] == list(range(1, 13))
    assert [event for event in logged if isinstance(event, Notice)] == [
        Notice("info", "Half of the run is done.")
    ]
