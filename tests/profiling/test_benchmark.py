"""Measuring: which rows there are, that they tell the truth, and that they keep their time."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.commands.measure import COMMAND
from trainer.core.device import Device
from trainer.core.errors import ConfigError
from trainer.core.registry import discover
from trainer.core.run_config import Choice, RunConfig, TrainingConfig
from trainer.core.specs import Optimization
from trainer.profiling.benchmark import benchmark as ladder_module
from trainer.profiling.benchmark import plan as plan_module
from trainer.profiling.benchmark.benchmark import Benchmark
from trainer.profiling.benchmark.goals import check_goals, plan_goals
from trainer.profiling.benchmark.peaks import peak_flops
from trainer.profiling.benchmark.plan import (
    BenchmarkPlan,
    available_optimizations,
    plan_trials,
    trial_of_all,
)
from trainer.profiling.benchmark.report import format_trial, to_markdown
from trainer.profiling.benchmark.trial import TrialJob, run_trial
from trainer.profiling.measurements import (
    Measurement,
    Trial,
    keep,
    list_kept,
    new_path,
    read_kept,
    s_per_step_of,
)
from trainer.profiling.memory_estimate import estimate
from trainer.profiling.synthetic_batches import make_synthetic_clips
from trainer.training.assemble import choose_device

CPU = choose_device("cpu")
GPU = Device("cuda", 0, "NVIDIA H200", 139.8, (9, 0))
SMALL = RunConfig(
    family=Choice("fastspeech2", {"size": "small"}),
    training=TrainingConfig(batch_size=1, device="cpu", steps=1000),
)


@pytest.fixture(autouse=True)
def _own_cache_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "cache"))
    precision, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = tf32


def _done(name: str, boxes: dict[str, Any] | None = None, **values: Any) -> Trial:
    facts = {"s_per_step": 1.0, "peak_gib": 4.0, "trained": 10, "parameters": 10, "flops": 1e12}
    return Trial(name, name, ["alone"], boxes or {}, state="done", **(facts | values))


# The goals


def test_the_rows_of_the_goals_hold_what_each_is_for() -> None:
    rows = {row.name: row for row in plan_goals(GPU)}
    limit = rows["within_7.2gb"].boxes["memory_limit"]["share"] * GPU.memory_gib * 2**30

    assert list(rows)[:3] == ["fast", "lean", "within_7.2gb"]
    assert limit == pytest.approx(7.2e9)
    assert rows["fast_batch32"].changes == {"training": {"batch_size": 32}}
    assert rows["fast_graphs"].boxes["compile"]["mode"] == "reduce-overhead"
    assert rows["within_7.2gb"].boxes["bf16_weights"] == {"updates": "stochastic"}
    assert BenchmarkPlan(SMALL).config_of(rows["fast_batch32"]).training.batch_size == 32


def test_goals_are_measured_before_single_boxes_and_without_a_gpu_only_when_asked_for() -> None:
    plain, asked = (
        _Answering(BenchmarkPlan(SMALL, "small", goals=goals)) for goals in (None, True)
    )
    names = [[row.name for row in benchmark.trials()] for benchmark in (plain, asked)]

    assert "fast" not in names[0]
    assert names[1].index("fast") < names[1].index("lora")
    assert "within_7.2gb" not in names[1], "the memory of a CPU cannot be limited"


def _measured(*rows: Trial) -> Measurement:
    return Measurement("", {}, {}, list(rows))


def test_goals_are_judged_on_what_was_measured() -> None:
    first = _done("fp32", peak_gib=20.0, s_per_step=0.24)
    fast = _done("fast", peak_gib=10.0, s_per_step=0.03, plain_flops=9e12)
    lean = _done("lean", peak_gib=4.0, s_per_step=0.032)

    found = {
        each["goal"]: each for each in check_goals(_measured(first, fast, lean), matmul_tflops=750)
    }

    assert found["times as fast as strict fp32"]["found"] == pytest.approx(8.0)
    assert found["times as fast as strict fp32"]["is_reached"]
    assert found["times as fast as TF32 and SDPA"]["is_reached"] is None
    no_slower = found["less memory than fp32, no slower than the fastest"]
    assert (no_slower["by"], no_slower["is_reached"]) == ("fast", False)
    hardly = found["less memory than fp32, at most a tenth slower than the fastest"]
    assert (hardly["by"], hardly["is_reached"]) == ("lean", True)
    assert found["of the matrix speed at batch 8"]["found"] == pytest.approx(0.4)


# The plan


def test_the_first_row_is_plain_and_every_set_of_boxes_comes_once() -> None:
    rows, _ = plan_trials(GPU)
    sets = [frozenset(row.boxes) for row in rows]

    assert rows[0].boxes == {}
    assert len(sets) == len(set(sets))


def test_the_rows_hold_the_fair_baseline_the_guide_and_each_box_alone() -> None:
    rows, notes = plan_trials(GPU)
    of_guide = [list(row.boxes) for row in rows if "guide" in row.groups]
    alone = {next(iter(row.boxes)) for row in rows if "alone" in row.groups}

    assert ["tf32", "sdpa"] in [list(row.boxes) for row in rows if "ladder" in row.groups]
    assert of_guide == [
        [],
        ["gradient_checkpointing"],
        ["gradient_checkpointing", "sdpa"],
        ["gradient_checkpointing", "sdpa", "mixed_precision"],
    ]
    assert alone | {note.split(":")[0] for note in notes} == set(
        discover("trainer.optimizations", Optimization)
    )


def test_what_a_device_lacks_is_left_out_with_its_reason() -> None:
    boxes, notes = available_optimizations(CPU)

    assert "tf32" not in boxes
    assert any(note.startswith("tf32: TF32 is a number format") for note in notes)


def test_a_box_that_appears_later_is_measured_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = discover("trainer.optimizations", Optimization)
    later = replace(entries["sdpa"], name="later", label="A later box")
    monkeypatch.setattr(plan_module, "discover", lambda *_: entries | {"later": later})

    rows, _ = plan_trials(CPU)

    assert "later" in [row.name for row in rows]


def test_a_box_that_decides_for_itself_is_measured_always() -> None:
    boxes, _ = available_optimizations(GPU)

    assert boxes["compile"] == {"when": "always"}


def test_all_of_them_are_those_that_worked_and_train_the_same_weights() -> None:
    boxes, _ = available_optimizations(CPU)
    measured = [_done("fp32"), *(_done(name, {name: {}}) for name in boxes)]
    late = next(row for row in measured if row.name == "mixed_precision")
    late.state = "deadline"
    next(row for row in measured if row.name == "lora").trained = 2
    next(row for row in measured if row.name == "compile").state = "skipped"

    row = trial_of_all(CPU, measured)

    left_out = {"mixed_precision", "lora", "reproducible", "compile"}
    assert set(row.boxes) == set(boxes) - left_out
    assert len(row.notes) == 4


# A row


def _carry_out(tmp_path: Path, boxes: dict[str, dict[str, Any]], size: str = "small") -> Trial:
    job = TrialJob(
        row=asdict(Trial("row", "row", ["ladder"], boxes)),
        config=replace(SMALL, optimizations=boxes).to_json(),
        size=size,
        lengths="spread",
        warm_up=1,
        least_steps=2,
        most_steps=2,
        timed_s=0.0,
        deadline_s=100.0,
    )
    (tmp_path / "job.json").write_text(json.dumps(asdict(job)))
    assert run_trial(tmp_path / "job.json", tmp_path / "row.json") == 0
    return Trial(**json.loads((tmp_path / "row.json").read_text()))


def test_a_row_tells_time_memory_loss_and_what_was_on(tmp_path: Path) -> None:
    row = _carry_out(tmp_path, {"gradient_checkpointing": {}})

    assert row.is_done
    assert (row.steps, row.warm_up, row.loss_after) == (2, 1, 1)
    assert row.s_per_step is not None and row.s_per_step > 0
    assert row.on["gradient_checkpointing"]["on"]
    assert not row.on["mixed_precision"]["on"]
    assert row.predicted_gib == pytest.approx(row.peak_gib, rel=0.1)
    assert row.padded_ratio is not None and 1.0 <= row.padded_ratio < 1.5


def test_rows_start_from_the_same_weights_and_draw_the_same_numbers(tmp_path: Path) -> None:
    plain = _carry_out(tmp_path, {})
    exact = _carry_out(tmp_path, {"gradient_checkpointing": {}})

    assert plain.loss == pytest.approx(exact.loss, rel=1e-6)


def test_what_cannot_be_used_is_a_refused_row(tmp_path: Path) -> None:
    row = _carry_out(tmp_path, {"mixed_precision": {"mode": "fp16"}})

    assert row.state == "refused"
    assert "needs a GPU" in row.reason


# The ladder


class _Answering(Benchmark):
    """A ladder whose children answer at once."""

    cancel_after = ""

    def _run_child(self, row: Trial, deadline_s: float, timed_s: float) -> Trial:
        if row.name == self.cancel_after:
            self.cancel()
        return replace(row, state="done", s_per_step=1.0, trained=10, loss=2.0, loss_after=3)


def test_a_ladder_measures_all_rows_and_repeats_the_first_at_the_end() -> None:
    benchmark = _Answering(BenchmarkPlan(SMALL, "small"))

    rows = list(benchmark.trials())

    assert rows[0].name == "fp32"
    assert rows[-1].name == "fp32_again"
    assert rows[-1].loss_drift == 0.0
    assert any(row.name == "all" for row in rows)
    assert benchmark.measurement.state == "finished"


def test_rows_without_time_are_skipped_and_say_so() -> None:
    benchmark = _Answering(BenchmarkPlan(SMALL, "small", minutes=0.1))

    rows = list(benchmark.trials())

    assert rows[0].is_done
    assert {row.state for row in rows[1:]} == {"skipped"}
    assert rows[1].reason == "no time left"


def test_a_cancelled_ladder_keeps_what_it_has() -> None:
    benchmark = _Answering(BenchmarkPlan(SMALL, "small"))
    benchmark.cancel_after = "sdpa"

    rows = list(benchmark.trials())

    assert [row.state for row in rows[:2]] == ["done", "done"]
    assert {row.state for row in rows[2:]} == {"cancelled"}
    assert benchmark.measurement.state == "cancelled"


def test_a_child_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 900\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    benchmark = Benchmark(BenchmarkPlan(SMALL, "small"))
    began = time.monotonic()

    row = benchmark._run_child(Trial("row", "row", [], {}), deadline_s=0.3, timed_s=0.1)

    assert row.state == "deadline"
    assert time.monotonic() - began < 600


def test_a_child_that_fails_leaves_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho the GPU fell off\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    row = Benchmark(BenchmarkPlan(SMALL, "small"))._run_child(
        Trial("row", "row", [], {}), 60.0, 0.1
    )

    assert (row.state, row.reason) == ("failed", "the GPU fell off")


def test_the_share_of_the_peak_counts_real_tokens_of_the_plain_graph() -> None:
    first = _done("fp32", flops=989.4e12, padded_ratio=2.0, loss=2.0, loss_after=3)
    row = _done("faster", {"sdpa": {}}, s_per_step=5.0, loss=2.002, loss_after=3)

    ladder_module._compare(row, first, GPU)

    assert row.mfu == pytest.approx(0.1)
    assert row.loss_drift == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 3090 Ti", 80.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA L4", 121.0),
    ],
)
def test_peaks_of_known_gpus(name: str, tflops: float) -> None:
    assert peak_flops(name) == tflops * 1e12


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "AMD EPYC", "NVIDIA L400"])
def test_no_peak_is_guessed(name: str) -> None:
    assert peak_flops(name) is None


# What is kept


def _measurement(**values: Any) -> Measurement:
    machine = {"device": CPU.name, "kind": "cpu"}
    model = {"family": "fastspeech2", "size": "small", "batch_size": 1, "optimizer": "adamw"}
    return Measurement("python -m trainer measure", machine, model, **values)


def test_a_measurement_is_read_back_as_it_was(tmp_path: Path) -> None:
    found = _measurement(rows=[_done("fp32")], state="finished")

    keep(found, tmp_path / "x.json")

    assert read_kept(tmp_path / "x.json") == found


def test_a_newer_measurement_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(_measurement().to_json() | {"format": 99}))

    with pytest.raises(ConfigError, match="format 99"):
        read_kept(tmp_path / "x.json")


def test_damaged_files_among_the_kept_are_passed_over() -> None:
    path = new_path("fastspeech2")
    keep(_measurement(), path)
    path.with_name("broken.json").write_text("{")

    assert [found[0] for found in list_kept()] == [path]


def test_seconds_are_foretold_only_from_a_like_measurement() -> None:
    row = _done("fp32", s_per_step=1.2, optimizer_s=0.2)
    keep(_measurement(rows=[row]), new_path("fastspeech2"))
    alike = {"machine": CPU.name, "parameters": 10, "trained": 10}
    twice = replace(SMALL, training=replace(SMALL.training, accumulate=2))
    boxed = replace(SMALL, optimizations={"sdpa": {}})

    same = s_per_step_of(SMALL, **alike, flops=1.5e12)
    several = s_per_step_of(twice, **alike, flops=1e12)

    assert same is not None and same[0] == pytest.approx(1.5 + 0.2)
    assert several is not None and several[0] == pytest.approx(2 * 1.0 + 0.2)
    assert s_per_step_of(boxed, **alike, flops=1e12) is None
    assert s_per_step_of(SMALL, **alike, flops=3e12) is None
    assert s_per_step_of(SMALL, **alike | {"machine": "another"}, flops=1e12) is None
    assert s_per_step_of(SMALL, **alike | {"trained": 9}, flops=1e12) is None


def test_a_table_shows_ratios_to_the_first_row() -> None:
    rows = [_done("fp32"), _done("fast", {"sdpa": {}}, s_per_step=0.5, peak_gib=3.0)]
    rows[1].on = {"sdpa": {"on": True, "detail": ""}}
    late = Trial("compile", "compile", [], {}, "deadline", "it took longer than 9 s")

    table = to_markdown(_measurement(rows=[*rows, late]))

    assert "| fast | 0.5000 | 2.00x |" in table
    assert "-25 %" in table
    assert "deadline" in table


def test_a_line_names_what_was_asked_for_but_not_on() -> None:
    row = _done("sdpa", {"sdpa": {}})

    assert "not active: sdpa" in format_trial(row, _done("fp32"))


# The command


def _command(*words: str) -> tuple[int, list[str]]:
    told: list[str] = []
    parser = argparse.ArgumentParser(allow_abbrev=False)
    return COMMAND.run(parser, list(words), told.append), told


def test_kept_measurements_are_listed_and_shown() -> None:
    keep(_measurement(rows=[_done("fp32")], state="finished"), new_path("fastspeech2"))

    code, listed = _command("--show")
    _, shown = _command("--show", str(list_kept()[0][0]))

    assert code == 0
    assert "1 trials, finished" in listed[0]
    assert "| fp32 | 1.0000 |" in shown[-1]


def test_rows_are_printed_as_json_lines_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.profiling.benchmark.benchmark.Benchmark", _Answering)
    out = tmp_path / "m.json"

    code, told = _command(
        "--family", "xtts", "--size", "tiny", "--device", "cpu", "--lines", "--json", str(out)
    )

    assert code == 0
    assert [json.loads(line)["name"] for line in told][0] == "fp32"
    assert read_kept(out).model["size"] == "tiny"
    assert read_kept(out) == list_kept()[0][1]


def test_a_size_the_family_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="Use one of: small, standard"):
        _command("--family", "fastspeech2", "--size", "full", "--device", "cpu")


def test_what_was_measured_is_what_the_estimate_needs(tmp_path: Path) -> None:
    row = _carry_out(tmp_path, {})
    keep(_measurement(rows=[row]), new_path("fastspeech2"))
    found = estimate(SMALL, clips=make_synthetic_clips([8.0]))

    known = s_per_step_of(
        SMALL,
        machine=CPU.name,
        parameters=found.parameters,
        trained=found.trained,
        flops=row.flops or 0.0,
    )

    assert known is not None and row.s_per_step is not None
    assert known[0] == pytest.approx(row.s_per_step, rel=0.01)


def test_a_slow_row_leaves_the_others_their_time() -> None:
    benchmark = Benchmark(BenchmarkPlan(SMALL, "small"))
    benchmark._taken = [50.0, 60.0, 70.0]

    with_plenty = benchmark._deadline(400.0, 100.0, 4, most_s=120.0)
    with_little = benchmark._deadline(150.0, 50.0, 3, most_s=0.0)

    assert with_plenty == 400.0 - 3 * 60.0
    assert with_little == 50.0


def test_where_time_is_short_fewer_rows_are_measured_rather_than_none() -> None:
    benchmark = Benchmark(BenchmarkPlan(SMALL, "small"))
    benchmark._taken = [20.0]

    # Ten rows in 150 s would have 15 s each, in which none ends.
    assert benchmark._deadline(150.0, 15.0, 10, most_s=40.0) == 40.0
    assert benchmark._kept_free_s(_done("lora")) == 100.0
    assert benchmark._kept_free_s(_done("all")) == 20.0
    assert benchmark._kept_free_s(_done("fp32_again")) == 0.0


def test_what_is_compiled_may_take_all_the_time_that_others_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmark = Benchmark(BenchmarkPlan(SMALL, "small", minutes=5.0))
    given: list[float] = []

    def note(row: Trial, deadline_s: float, timed_s: float) -> Trial:
        given.append(deadline_s)
        return row

    monkeypatch.setattr(benchmark, "_run_child", note)
    for boxes in ({"lora": {}}, {"compile": {}}):
        benchmark._taken = [20.0]
        benchmark._carry_out(_done("row", boxes), left=12)

    assert given == pytest.approx([75.0, 200.0], abs=2.0)
