"""The estimate: what is counted without contents is what an allocator hands out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from trainer.config.presets import USABLE_SHARE, apply_preset
from trainer.config.resolve import resolve
from trainer.core.device import Device
from trainer.core.errors import ConfigError
from trainer.core.registry import discover
from trainer.core.run_config import Choice, RunConfig, TrainingConfig
from trainer.core.specs import OptimizerSpec
from trainer.core.train_state import TrainState, World
from trainer.core.types import Batch
from trainer.profiling.cuda_allocator import CudaSemantics
from trainer.profiling.memory_estimate import count_step, estimate
from trainer.profiling.memory_tracker import FlopCounter, MemoryTracker
from trainer.profiling.synthetic_batches import (
    largest_batches,
    longest_clips,
    make_synthetic,
    make_synthetic_clips,
)
from trainer.training.assemble import build_train_state, choose_device
from trainer.training.loop import train_step

CPU = choose_device("cpu")
GPU = Device("cuda", 0, "a GPU of another machine", 24.0, (9, 0))
BOXES: list[dict[str, dict[str, Any]]] = [
    {},
    {"sdpa": {}},
    {"mixed_precision": {}},
    {"gradient_checkpointing": {"level": "light"}},
    {"bf16_weights": {}},
    {"bf16_weights": {"updates": "stochastic"}},
    {"gradient_checkpointing": {}, "mixed_precision": {}, "sdpa": {}},
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path_factory.getbasetemp() / "estimate-cache"))


def _config(family: str, size: str, **values: Any) -> RunConfig:
    optimizer = Choice(values.pop("optimizer", "adamw"))
    boxes = values.pop("boxes", {})
    options = {"size": size} if family == "fastspeech2" else {}
    training = TrainingConfig(**{"batch_size": 2, "device": "cpu", "steps": 9} | values)
    return RunConfig(
        family=Choice(family, options), training=training, optimizer=optimizer, optimizations=boxes
    )


class _OneBatch:
    """The same batch at every step."""

    steps_per_epoch = 1
    num_clips = 1
    waited_s = 0.0

    def __init__(self, batch: Batch, count: int) -> None:
        self._batches = [batch] * count

    def audio_s_of_step(self, step: int) -> float:
        return 1.0

    def micro_batches(self, step: int) -> list[Batch]:
        return self._batches

    def close(self) -> None:
        return None


def _both(config: RunConfig, size: str, seconds: float) -> tuple[int, int]:
    """Return the estimated peak and the one of PyTorch's allocator, in bytes."""
    entries = resolve(config)
    clips = longest_clips(make_synthetic_clips([seconds, 0.8 * seconds]), 2)
    dataset = make_synthetic(config, entries, clips, size)
    batch = largest_batches(config, entries, dataset)[0]
    guess = count_step(config, entries, dataset, batch, CPU)
    model = entries.family.load(None, entries.family_options, dataset.corpus.facts)
    train_state = build_train_state(
        Path("."), config, entries, dataset, model=model, machine=CPU, world=World()
    )
    train_state.train_batches.close()
    train_state.train_batches = _OneBatch(batch, config.training.accumulate)
    for optimization, options in entries.optimizations:
        optimization.apply(train_state, options)
    train_step(train_state, 1)
    return guess.peak, _allocated(train_state, batch)


def _allocated(train_state: TrainState, batch: Batch) -> int:
    """Return the most bytes held during a step: what lies there before, and what is handed out."""
    train_state.optimizer.zero_grad(set_to_none=True)
    held = MemoryTracker()
    states = [value for state in train_state.optimizer.state.values() for value in state.values()]
    lying = [
        *train_state.model.parameters(),
        *train_state.model.buffers(),
        *batch.tensors.values(),
        *states,
    ]
    for value in [
        *lying,
        *train_state.master_weights.values(),
        *(train_state.average or {}).values(),
    ]:
        if isinstance(value, torch.Tensor):
            held.track(value)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        train_step(train_state, 2)
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    now = peak = 0
    for event in seen.profiler.kineto_results.events():
        now += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, now)
    return held.now_bytes + peak


@pytest.mark.parametrize("boxes", BOXES, ids=lambda boxes: "+".join(boxes) or "plain")
@pytest.mark.parametrize(
    ("family", "size"), [("xtts", "tiny"), ("fastspeech2", "small"), ("indextts2", "tiny")]
)
def test_the_estimate_is_what_the_allocator_hands_out(
    family: str, size: str, boxes: dict[str, dict[str, Any]]
) -> None:
    guess, real = _both(_config(family, size, boxes=boxes), size, 2.0)

    assert guess == pytest.approx(real, rel=0.1)


@pytest.mark.parametrize(
    "values", [{"accumulate": 2}, {"ema_decay": 0.9}, {"max_positions": 900}], ids=str
)
def test_accumulation_averages_and_token_budgets_are_counted(values: dict[str, Any]) -> None:
    guess, real = _both(_config("fastspeech2", "small", **values), "small", 2.0)

    assert guess == pytest.approx(real, rel=0.1)


@pytest.mark.parametrize("name", ["prodigy", "adafactor", "muon", "soap", "schedule_free_adamw"])
def test_state_and_temporaries_of_optimizers_are_counted(name: str) -> None:
    assert name in discover("trainer.optimizers", OptimizerSpec)

    guess, real = _both(_config("fastspeech2", "small", optimizer=name), "small", 0.5)

    assert guess == pytest.approx(real, rel=0.1)


def test_all_weights_train_at_batch_8_of_the_longest_clips_within_7_2_gb() -> None:
    config = apply_preset(RunConfig(), "xtts-8gb")

    found = estimate(config, device=replace(GPU, memory_gib=8.0), size="full")

    assert config.training.batch_size == 8
    assert found.parameters == found.trained == 441_018_563
    assert found.weights == pytest.approx(2 * found.parameters, rel=0.03)
    assert found.gradients == pytest.approx(found.weights, rel=0.01)
    assert found.optimizer == pytest.approx(8 * found.parameters, rel=0.01)
    assert 0.5 * 7.2e9 < found.peak <= 7.2e9
    assert found.peak_gib <= USABLE_SHARE * 8


def test_longer_clips_and_larger_batches_need_more() -> None:
    config = _config("fastspeech2", "small", batch_size=2)
    larger = _config("fastspeech2", "small", batch_size=4)

    short, long = (estimate(config, clips=make_synthetic_clips([length])) for length in (1.0, 3.0))
    wide = estimate(larger, clips=make_synthetic_clips([3.0]))

    assert short.working < long.working < wide.working


def test_fixed_weights_need_neither_gradients_nor_state() -> None:
    config = _config("xtts", "")
    frozen = replace(config, family=Choice("xtts", {"freeze": "both"}))

    plain, less = (estimate(each, clips=make_synthetic_clips([1.0])) for each in (config, frozen))

    assert less.trained < plain.trained
    assert less.gradients < plain.gradients
    assert less.optimizer < plain.optimizer


def test_a_gpu_of_another_machine_gets_fused_attention_despite_dropout() -> None:
    config = _config("xtts", "", boxes={"sdpa": {}, "gradient_checkpointing": {}})

    here, there = (
        estimate(config, clips=make_synthetic_clips([6.0]), device=at) for at in (CPU, GPU)
    )

    assert there.working < 0.85 * here.working


def test_a_gpu_is_reckoned_without_touching_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config("xtts", "", boxes={"sdpa": {}})
    usual = estimate(config, clips=make_synthetic_clips([1.0]), device=GPU)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    found = estimate(config, clips=make_synthetic_clips([1.0]), device=GPU)
    assert found.working == usual.working
    assert found.peak == pytest.approx(usual.peak, rel=1e-3)


def test_norms_are_in_fp32_where_cuda_has_them_so() -> None:
    norm, hidden = nn.LayerNorm(8), torch.ones(2, 8, dtype=torch.bfloat16)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = norm(hidden)
        with CudaSemantics(is_autocast=True):
            widened = norm(hidden)

    assert plain.dtype == torch.bfloat16
    assert widened.dtype == torch.float32


def test_what_the_estimate_cannot_see_is_named() -> None:
    config = _config("fastspeech2", "small", boxes={"memory_limit": {}})

    found = estimate(config, clips=make_synthetic_clips([1.0]), device=GPU)

    assert found.left_out == ("memory_limit",)


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="no size 'huge'. Use one of: tiny, medium, full"):
        estimate(_config("xtts", ""), size="huge")


def test_a_storage_counts_once_and_only_while_it_lives() -> None:
    live = MemoryTracker()

    with live:
        first = torch.ones(1000)
        view = first[10:]
        del first
        during = live.now_bytes
        del view

    assert during == 4000
    assert live.now_bytes == 0
    assert live.peak_bytes == 4000


def test_flops_of_a_product_are_two_per_weight_and_row() -> None:
    counter = FlopCounter()

    with counter:
        torch.ones(3, 4) @ torch.ones(4, 5)

    assert counter.flops == 2 * 3 * 4 * 5
