"""What the page tells of races, rates, measurements and estimates, from folders made by hand."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clips import write_tone
from tests.helpers.page import in_blocks, make_studio
from trainer.commands.main import main
from trainer.config.presets import apply_preset
from trainer.config.resolve import resolve
from trainer.core.device import Device
from trainer.core.errors import ConfigError, DataError, RunError, RunNotFound
from trainer.core.events import (
    CheckpointSaved,
    Notice,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)
from trainer.core.options import describe
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.profiling.benchmark.plan import plan_trials
from trainer.profiling.measurements import Measurement, Trial, keep, kept_folder
from trainer.profiling.memory_fit import find_fix
from trainer.profiling.recommendations import advise, advise_preset
from trainer.race import Race
from trainer.race.choices import RaceChoices, plan_race
from trainer.race.publish import publish
from trainer.race.view import view_race
from trainer.runs.run import Run
from trainer.training.assemble import choose_device
from webui.forms.form_validation import FieldValidator
from webui.jobs import background_job
from webui.jobs.background_job import BackgroundJob
from webui.restart_with_adamw import restart_with_adamw
from webui.tabs import race as race_tab
from webui.tabs.recordings import start_cut
from webui.tabs.train import warn_of_rate
from webui.tabs.trials import describe_estimate, describe_levels, start_rates
from webui.views.trial_results import describe_cut, describe_measuring, describe_rates

CPU = Device("cpu", 0, "a processor", 16.0)
GPU = Device("cuda", 0, "a card", 12.0, (8, 6))
CONFIG = RunConfig(data=DataConfig(train_csv="a.csv"), training=TrainingConfig(steps=20))


def finished_race(folder: Path, losses: dict[str, float]) -> Race:
    """Return a race whose runs have ended with these losses, at one rate each."""
    choices = RaceChoices(optimizers=",".join(losses), seeds="1,2", rates=1)
    race = Race.create(folder, plan_race(CONFIG, choices))
    while left := [job for job in race.jobs() if job.name not in race.results()]:
        for job in left:
            run = Run.create(race.run_of(job).folder, CONFIG)
            run.events.append(RunStarted(1, job.steps, 4))
            for step in range(1, job.steps + 1):
                told = {"train/loss": 2.0 - 0.01 * step, "perf/s_per_step": 0.1}
                run.events.append(StepDone(step, told))
            loss = losses[job.entrant.optimizer.name] + 0.001 * job.seed
            run.events.append(ValidationDone(job.steps, {"val/loss": loss}))
            run.events.append(RunFinished("finished", job.steps))
    return race


# Races


def test_a_race_tells_its_curves_its_table_and_its_verdict(tmp_path: Path) -> None:
    race = finished_race(tmp_path / "race", {"adamw": 1.0, "lion": 2.0})
    before = view_race(race)["files"]
    publish(race, lambda text: None)

    seen = view_race(race)

    assert before == []
    assert (seen["state"], seen["done"], seen["steps"]) == ("finished", 4, 20)
    assert [run["losses"] for run in seen["entrants"][1]["runs"]] == [[2.001], [2.002]]
    assert [row["entrant"] for row in seen["report"]["rows"]] == ["adamw", "lion"]
    assert "adamw is" in " ".join(seen["report"]["verdict"]) or "worse" in str(seen["report"])
    assert {"race.md", "race.csv", "results.json"} <= set(seen["files"])
    json.dumps(seen, allow_nan=False)


def test_a_race_under_way_says_which_run_is_at_hand(tmp_path: Path) -> None:
    race = Race.create(tmp_path / "race", plan_race(CONFIG, RaceChoices(seeds="1,2", rates=2)))

    seen = view_race(race)

    assert (seen["state"], seen["done"], seen["report"]) == ("created", 0, None)
    assert seen["total"] >= 6
    assert seen["entrants"][1]["sweep"] == []


def test_minutes_leave_the_steps_open_until_the_pace_is_known(tmp_path: Path) -> None:
    config = replace(CONFIG, training=TrainingConfig(epochs=3))
    choices = RaceChoices(optimizers="adamw,lion", minutes=5, seeds="1,2")
    race = Race.create(tmp_path / "race", plan_race(config, choices))

    assert view_race(race)["steps"] is None


def test_a_long_warm_up_is_shortened_to_a_tenth_of_a_run_of_a_race() -> None:
    config = apply_preset(CONFIG, "indextts2-korean")
    plan = plan_race(config, RaceChoices(minutes=30))
    contender = plan.entrants[0]

    run = plan.run_config(contender, 1e-5, seed=1, steps=200, num_validations=4)
    whole = plan.run_config(contender, 1e-5, seed=1, steps=240_000, num_validations=4)

    assert run.schedule.options["warmup_steps"] == 20
    assert whole.schedule.options["warmup_steps"] == 1000


def test_only_known_races_and_their_files_are_handed_out(tmp_path: Path) -> None:
    races = make_studio(tmp_path).races
    finished_race(races.folder / "one", {"adamw": 1.0, "lion": 2.0})

    assert races.names() == ["one"]
    for name, file in (("../one", "race.md"), ("one", "race.json"), ("one", "race.md")):
        with pytest.raises(RunNotFound):
            races.file(name, file)


def test_a_race_that_is_not_under_way_cannot_be_stopped(tmp_path: Path) -> None:
    races = make_studio(tmp_path).races
    finished_race(races.folder / "one", {"adamw": 1.0, "lion": 2.0})

    with pytest.raises(RunError, match="not running"):
        races.stop("one")


def test_the_fields_of_a_race_make_its_choices() -> None:
    tab = in_blocks(lambda: race_tab.build(FieldValidator()))

    choices = race_tab.read_choices(tab.form, {}, ["adamw", " lion:lr=1e-4 "])

    assert choices.optimizers == "adamw,lion:lr=1e-4"
    assert (choices.minutes, choices.seeds) == (30.0, "1,2,3")
    shown = {info.name for info in describe(RaceChoices)} - set(race_tab.NOT_SHOWN)
    assert tab.form.fields.keys() == shown


def test_seeds_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="'one' is not a list of seeds"):
        plan_race(CONFIG, RaceChoices(seeds="one"))


# Errands


def test_an_errand_outlives_the_page_and_is_found_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = 'import time; print(\'{"done": 1, "total": 2}\', flush=True); time.sleep(600)'
    monkeypatch.setattr(
        background_job, "trainer_command", lambda *words: [sys.executable, "-c", *words]
    )
    first = BackgroundJob(tmp_path / "errand")
    first.start([program], {"out": "1"})
    later = BackgroundJob(tmp_path / "errand")
    while not later.lines():
        time.sleep(0.01)

    with pytest.raises(RunError, match="already running"):
        later.start([program], {})
    later.stop()
    while first.is_running():
        time.sleep(0.01)

    assert later.lines() == [{"done": 1, "total": 2}]
    assert later.about()["out"] == "1"
    assert not later.is_running()
    assert describe_rates(later)["state"] == "failed"


def test_a_process_id_that_belongs_to_another_process_now_is_left_alone(tmp_path: Path) -> None:
    job = BackgroundJob(tmp_path)
    about = {"pid": os.getpid(), "started_at": 1.0}
    (tmp_path / "about.json").write_text(json.dumps(about), encoding="utf-8")

    job.stop()

    assert not job.is_running()


def test_what_a_search_found_is_told_with_its_plot(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "find-lr.json").write_text('{"suggestion": 0.001}', encoding="utf-8")
    about = {"out": "3", "optimizer": "adamw", "pid": -1, "started_at": 0.0}
    (tmp_path / "about.json").write_text(json.dumps(about), encoding="utf-8")

    found = describe_rates(BackgroundJob(tmp_path))

    assert (found["state"], found["finding"]) == ("done", {"suggestion": 0.001})
    assert describe_rates(BackgroundJob(tmp_path / "none"))["state"] == "none"


def test_an_optimizer_that_finds_its_rate_itself_is_not_searched(tmp_path: Path) -> None:
    config = replace(CONFIG, optimizer=Choice("prodigy"))

    with pytest.raises(ConfigError, match="finds its learning rate itself"):
        start_rates(make_studio(tmp_path), config)


# Measurements, advice and estimates


def _keep_measurement(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Trial:
    monkeypatch.setenv("TIMBRE_CACHE", str(folder))
    rows = [
        Trial("fp32", "plain", ["ladder"], {}, state="done", s_per_step=1.0, peak_gib=4.0),
        Trial("sdpa", "SDPA", ["alone"], {"sdpa": {}}, state="done", s_per_step=1.2, peak_gib=4.0),
    ]
    found = Measurement("measure", {"device": CPU.name}, {"family": "xtts"}, rows, "finished")
    keep(found, kept_folder() / "one.json")
    return rows[1]


def test_what_was_measured_here_decides_what_to_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guessed = {each.name: each for each in advise(CPU, "fastspeech2", "balanced")}
    _keep_measurement(monkeypatch, tmp_path)

    measured = {each.name: each for each in advise(CPU, "xtts", "balanced")}

    assert guessed["sdpa"].tick
    assert not measured["sdpa"].tick
    assert "0.83x as fast" in measured["sdpa"].why


def test_measurements_are_shown_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _keep_measurement(monkeypatch, tmp_path / "cache")

    seen = describe_measuring(BackgroundJob(tmp_path / "errand"))

    assert not seen["running"]
    assert [row["name"] for row in seen["kept"][0]["rows"]] == ["fp32", "sdpa"]


def test_boxes_of_ones_own_are_measured_right_after_the_plain_row() -> None:
    rows, _ = plan_trials(CPU, {"sdpa": {}, "mixed_precision": {"mode": "bf16"}})

    assert (rows[1].name, rows[1].groups) == ("chosen", ["chosen"])
    assert rows[1].boxes["mixed_precision"] == {"mode": "bf16"}


@pytest.mark.parametrize(
    ("device", "purpose", "preset"),
    [
        (GPU, "balanced", "xtts-12gb"),
        (GPU, "low-memory", "xtts-8gb"),
        (GPU, "quick", "quick"),
        (CPU, "quality", "quality"),
    ],
)
def test_the_preset_follows_the_memory_and_the_purpose(
    device: Device, purpose: str, preset: str
) -> None:
    assert advise_preset(device, "xtts", purpose) == preset


def test_a_small_card_is_told_to_compute_again_and_a_large_one_is_not() -> None:
    large = replace(GPU, memory_gib=80.0)

    small, roomy = (
        {each.name: each.tick for each in advise(device, "xtts", "balanced")}
        for device in (GPU, large)
    )

    assert small["gradient_checkpointing"]
    assert not roomy["gradient_checkpointing"]
    assert roomy["mixed_precision"]


@pytest.mark.parametrize("batch_size", [32, 35])
def test_settings_that_do_not_fit_are_mended_with_the_same_effective_batch(batch_size: int) -> None:
    config = RunConfig(training=TrainingConfig(batch_size=batch_size, steps=10))
    tiny = replace(choose_device("cpu"), memory_gib=0.2)

    fix = find_fix(config, tiny)

    assert fix is not None
    training = fix["config"]["training"]
    assert training["batch_size"] < batch_size
    assert training["batch_size"] * training["accumulate"] == batch_size
    assert fix["peak_gib"] <= 0.9 * 0.2


def test_a_card_without_tensor_cores_is_not_told_of_them() -> None:
    old = replace(GPU, capability=(6, 1))

    words = {
        (device.capability, purpose): next(
            each for each in advise(device, "xtts", purpose) if each.name == "mixed_precision"
        )
        for device in (old, GPU)
        for purpose in ("balanced", "low-memory")
    }

    assert [(each.tick, "no tensor cores" in each.why) for each in words.values()] == [
        (False, True), (True, True), (True, False), (True, False)
    ]  # fmt: skip


def test_settings_that_nothing_mends_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "--preset", "xtts-tiny", "--device", "cpu", "--batch-size", "2"]

    assert main([*words, "--gpu-memory", "0.001", "--fix"]) == 1

    assert "No memory-saving option makes it fit" in capsys.readouterr().out


def test_every_level_of_checkpointing_is_foreseen_in_memory_and_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["estimate", "--preset", "xtts-tiny", "--device", "cpu", "--gpu-memory", "24"]

    assert main([*words, "--levels", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["levels"]
    assert main([*words, "--levels"]) == 0
    said = capsys.readouterr().out.splitlines()
    shown = describe_levels(rows, CPU)

    assert [row["level"] for row in rows] == ["off", "light", "medium", "full"]
    peaks, more = ([row[name] for row in rows] for name in ("peak_gib", "more"))
    assert peaks == sorted(peaks, reverse=True) and peaks[3] < 0.8 * peaks[0]
    assert more == sorted(more) and more[0] == 0.0 and 0.05 < more[3] < 0.4
    assert said[3].startswith("full") and said[3].endswith("fits")
    assert shown.count("<tr>") == 5


def test_an_estimate_that_does_not_fit_names_what_helps() -> None:
    found = {
        "peak_gib": 20.0, "usable_gib": 14.4, "fits": False, "s_per_step": 0.5,
        "s_per_step_from": "fp32", "left_out": [],
        "fix": {"words": ["Gradient checkpointing", "batch size 4 x 2"], "peak_gib": 9.0},
    }  # fmt: skip

    text = describe_estimate(found, 120, CPU)
    hopeless = describe_estimate(found | {"fix": None}, 120, CPU)

    assert "60 s for 120 steps" in text
    assert "batch size 4 x 2 (9.0 GB)" in text
    assert "No setting makes it fit" in hopeless


@pytest.mark.parametrize(("rate", "said"), [(0.5, "far above"), (1e-6, "far below"), (1e-3, "")])
def test_a_rate_far_from_the_usual_one_is_told(rate: float, said: str) -> None:
    config = replace(CONFIG, optimizer=Choice("adamw", {"lr": rate}))

    warnings = warn_of_rate(config, resolve(config))

    assert [said in warning for warning in warnings] == ([True] if said else [])


# The rescue


def _sick(tmp_path: Path, *events: Any) -> tuple[Any, Run]:
    studio = make_studio(tmp_path)
    run = Run.create(studio.library.folder / "sick", CONFIG)
    run.events.append(RunStarted(1, 20, 4))
    for event in events:
        run.events.append(event)
    run.events.append(RunFinished("stopped", 12))
    return studio, run


def test_a_run_that_goes_well_cannot_be_rescued(tmp_path: Path) -> None:
    studio, _ = _sick(tmp_path)

    with pytest.raises(RunError, match="no instability"):
        restart_with_adamw(studio, "sick")


def test_the_rescue_starts_adamw_from_the_last_checkpoint_before_the_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [StepDone(step, {"train/loss": 2.0 if step < 7 else 9.0}) for step in range(1, 11)]
    saved = [CheckpointSaved(step, f"checkpoints/{step}", True, 1, 0.1) for step in (5, 8)]
    warning = Notice("warning", "The loss rose.", "", 9, offer="rescue")
    studio, run = _sick(tmp_path, *told[:5], saved[0], *told[5:8], saved[1], *told[8:], warning)
    for name in ("5", "8"):
        folder = run.folder / "checkpoints" / name
        folder.mkdir()
        (folder / "manifest.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(Run, "start", lambda run: None)

    name, trains = restart_with_adamw(studio, "sick")

    config = studio.library.get(name).config
    assert (name, trains) == ("sick-adamw", True)
    assert config.base == str(run.folder / "checkpoints" / "5")
    assert config.optimizer.options["lr"] == pytest.approx(2e-4)


def test_only_what_is_there_is_cut_and_only_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = make_studio(tmp_path)
    started: list[list[str]] = []
    monkeypatch.setattr(
        BackgroundJob, "start", lambda self, words, about: started.append(list(words))
    )
    tape = write_tone(tmp_path / "a -- b.wav")
    upload = write_tone(tmp_path / "browser" / "tape.wav")

    bad = [["", 11], ["nowhere", 11], [str(tape), "x"], [str(tape), 500]]
    for path, longest in bad:
        with pytest.raises(DataError):
            start_cut(studio, None, path, "", longest, "", "en")
    start_cut(studio, None, str(tape), " ada ", 8, "--lines", "ko")
    start_cut(studio, [str(upload), str(tmp_path / "x.exe")], "", None, 8.5, None, "")
    monkeypatch.setattr(BackgroundJob, "is_running", lambda self: True)
    with pytest.raises(RunError, match="already running"):
        start_cut(studio, None, str(tape), "", 8, "", "en")

    typed, sent = started
    assert typed[:2] == ["cut", "--lines"]
    assert {"--speaker=ada", "--whisper=--lines", "--language=ko", "--longest=8"} < set(typed)
    assert f"--out={tmp_path / 'a -- b-clips-8s'}" in typed
    assert len(sent) == 5
    assert [path.name for path in Path(sent[2].split("=")[1]).iterdir()] == ["tape.wav"]


def test_the_page_tells_how_far_a_cut_is(tmp_path: Path) -> None:
    job = make_studio(tmp_path).cutting
    states = [describe_cut(job)["state"]]
    job.folder.mkdir(parents=True)
    (job.folder / "about.json").write_text('{"pid": 0, "started_at": 0, "source": "a"}')
    (job.folder / "log.txt").write_text("Error: The recordings yielded no clips.\n")
    failed = describe_cut(job)
    found = {"list": "list.csv", "clips": 2}
    (job.folder / "lines.jsonl").write_text('{"phase": "cut"}\n' + json.dumps(found) + "\n")

    assert states == ["none"]
    assert (failed["state"], failed["problem"]) == ("failed", "The recordings yielded no clips.")
    assert describe_cut(job)["found"] == found
