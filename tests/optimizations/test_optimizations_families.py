"""Optimizations on the real families: equal losses and gradients, and everything really on."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

from tests.helpers.toy import make_setup
from tests.parity.tiny_fastspeech2 import tiny_batch, tiny_network
from trainer.core.options import build_options
from trainer.core.registry import discover
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import TrainState
from trainer.core.types import Batch, Features
from trainer.models.fastspeech2 import FAMILY as FASTSPEECH2
from trainer.models.xtts import FAMILY as XTTS
from trainer.models.xtts.network.gpt import XttsGpt
from trainer.models.xtts.network.sizes import TINY
from trainer.models.xtts.training.batches import counts, make_collate
from trainer.optimizations._core import compiled_block
from trainer.state.probe import probe
from trainer.training.loop import train_step

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
CATALOG = discover("trainer.optimizations", Optimization)
SIZES = replace(TINY.gpt, width=32, num_text_tokens=270, n_mels=8, num_latents=4)


class _Batches:
    """One batch per step, of another length each time."""

    steps_per_epoch = 4

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def micro_batches(self, step: int) -> list[Batch]:
        return [self.batches[step % len(self.batches)]]


def _xtts_clip(num_tokens: int, num_codes: int) -> Features:
    generator = np.random.default_rng(num_tokens * 100 + num_codes)
    return {
        "tokens": generator.integers(3, 60, num_tokens).astype(np.int32),
        "codes": generator.integers(0, 1024, num_codes).astype(np.int16),
        "reference": generator.normal(0, 1, (SIZES.n_mels, 12)).astype(np.float16),
        "reference_frames": np.array(10, np.int32),
        "masked": np.array((0, 0), np.int32),
    }


def _xtts_batch(lengths: list[tuple[int, int]]) -> Batch:
    clips = [_xtts_clip(*length) for length in lengths]
    found = [counts(clip) for clip in clips]
    totals = {name: sum(count[name] for count in found) for name in found[0]}
    return Batch(make_collate(SIZES, False)(clips), ["clip"] * len(clips), totals, 1.0)


def _setup(folder: Path, family: str, dropout: float = 0.0) -> TrainState:
    """Return a TrainState of a tiny network of a real family; only that of XTTS drops out."""
    train_state = make_setup(folder)
    torch.manual_seed(0)
    if family == "xtts":
        train_state.family, train_state.model = XTTS, XttsGpt(SIZES, dropout)
        lengths = [[(7, 9), (3, 14)], [(4, 5), (6, 22), (9, 9)]]
        batches = [_xtts_batch(step) for step in lengths]
    else:
        train_state.family, train_state.model = FASTSPEECH2, tiny_network()
        batches = [tiny_batch()]
    train_state.train_batches = _Batches(batches)  # type: ignore[assignment]
    train_state.optimizer = torch.optim.AdamW(train_state.model.train().parameters(), lr=1e-3)
    train_state.base_lr, train_state.last_step = 1e-3, 4
    return train_state


def _apply(train_state: TrainState, name: str, **values: Any) -> None:
    entry = CATALOG[name]
    entry.apply(train_state, build_options(entry.options, values, name))


def _state(train_state: TrainState, name: str) -> OptimizationStatus:
    return CATALOG[name].status(
        train_state, probe(train_state, train_state.train_batches.micro_batches(1)[0])
    )


def _train(train_state: TrainState) -> list[float]:
    steps = [train_step(train_state, step) for step in range(1, 5)]
    return [value.item() for step in steps for value in step.values()]


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    yield
    torch._dynamo.reset()


@pytest.fixture
def _quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace the graph, but write no code for it, which would take long."""

    def trace(graph: Any, inputs: list[Any], **how: Any) -> Any:
        return graph.forward

    monkeypatch.setattr(compiled_block, "compile_with_inductor", trace)


@pytest.fixture
def _half_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace the graph and that of its gradients, but write no code for them."""

    def trace(graph: Any, inputs: list[Any], **how: Any) -> Any:
        return aot_eager(graph, inputs)

    monkeypatch.setattr(compiled_block, "compile_with_inductor", trace)


@pytest.mark.parametrize("family", ["xtts", "fastspeech2"])
def test_compiled_blocks_give_the_same_losses_and_gradient_norms(
    family: str, _quick_compiler: None, tmp_path: Path
) -> None:
    plain, compiled = _setup(tmp_path, family), _setup(tmp_path, family)
    keys = list(plain.model.state_dict())
    _apply(compiled, "compile")

    found = _train(compiled)

    state = _state(compiled, "compile")
    assert found == pytest.approx(_train(plain), rel=1e-5)
    assert state.on, state.detail
    assert "recompiled" not in state.detail
    assert list(compiled.model.state_dict()) == keys


def test_a_compiled_graph_runs_with_attention_checkpointing_and_autocast(
    _half_a_compiler: None, tmp_path: Path
) -> None:
    plain, all_on = _setup(tmp_path, "xtts"), _setup(tmp_path, "xtts")
    names = ["sdpa", "gradient_checkpointing", "mixed_precision", "compile"]
    for name in names:
        _apply(all_on, name)

    found = _train(all_on)

    states = {name: _state(all_on, name) for name in names}
    assert found == pytest.approx(_train(plain), rel=1e-2)
    assert all(state.on for state in states.values()), states


def test_a_compiled_graph_serves_all_lengths_with_attention_that_drops_out(
    _half_a_compiler: None, tmp_path: Path
) -> None:
    train_state = _setup(tmp_path, "xtts", dropout=0.1)
    _apply(train_state, "sdpa")
    _apply(train_state, "compile")

    found = _train(train_state)

    state = _state(train_state, "compile")
    assert all(map(math.isfinite, found))
    assert state.on, state.detail
    assert "recompiled" not in state.detail


# The compiler warns of its own older parts.
@pytest.mark.filterwarnings("ignore")
def test_the_compiler_itself_gives_the_same_losses_and_gradient_norms(tmp_path: Path) -> None:
    plain, compiled = _setup(tmp_path, "xtts"), _setup(tmp_path, "xtts")
    _apply(compiled, "sdpa")
    _apply(compiled, "gradient_checkpointing", level="light")
    _apply(compiled, "compile")

    found = _train(compiled)

    assert found == pytest.approx(_train(plain), rel=1e-5)
    assert _state(compiled, "compile") == OptimizationStatus(True, "2 of 2 blocks ran compiled")
    assert "inside 2 compiled blocks" in _state(compiled, "gradient_checkpointing").detail


def test_adapters_of_xtts_train_compiled_and_checkpointed_in_one_graph(
    _quick_compiler: None, tmp_path: Path
) -> None:
    plain, compiled = _setup(tmp_path, "xtts"), _setup(tmp_path, "xtts")
    names = ["lora", "gradient_checkpointing", "compile"]
    _apply_seeded(plain, names[:1])
    _apply_seeded(compiled, names)

    found = _train(compiled)

    states = {name: _state(compiled, name) for name in names}
    assert found == pytest.approx(_train(plain), rel=1e-5)
    assert all(state.on for state in states.values()), states
    assert "8 layers with adapters" in states["lora"].detail
    assert states["compile"].detail == "2 of 2 blocks ran compiled"


def _apply_seeded(train_state: TrainState, names: list[str]) -> None:
    torch.manual_seed(1)
    for name in names:
        _apply(train_state, name)
