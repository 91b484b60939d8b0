"""The probe: what it sees of a forward and backward pass, and that it leaves no trace."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.helpers.toy import TOY, make_setup
from trainer.core.train_state import Precision, TrainState
from trainer.core.types import Batch
from trainer.state.probe import probe


class _Block(nn.Module):
    """One matrix product whose activation is kept for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


class _ChildBlock(_Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def _setup(folder: Path, *blocks: nn.Module) -> TrainState:
    """Return a TrainState whose model is a chain of blocks and whose loss is the mean square."""
    state = make_setup(folder)
    state.model = nn.Sequential(*blocks)

    def losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"square": model(batch["x"]).square().mean()}

    state.family = replace(TOY, losses=losses, blocks=lambda model: list(model.children()))
    return state


def _batch() -> Batch:
    return Batch({"x": torch.ones(64, 32)}, [], {"clips": 64.0}, 1.0)


def _watch_toy(
    folder: Path, change: Callable[[TrainState], Any] = lambda state: None
) -> TrainState:
    state = make_setup(folder)
    change(state)
    probe(state, state.train_batches.micro_batches(1)[0])
    return state


def test_it_counts_the_operators_of_both_passes(tmp_path: Path) -> None:
    shown = probe(_setup(tmp_path, _Block(), _Block()), _batch())

    assert shown.operators["aten::tanh"] == 2
    assert shown.operators["aten::tanh_backward"] == 2
    # Two products forward, two for the weights, one for the input of the second block.
    assert shown.operators["aten::mm"] == 5


def test_it_tells_the_types_of_the_operands_of_matrix_products(tmp_path: Path) -> None:
    state = _setup(tmp_path, _Block())

    full = probe(state, _batch())
    state.precision = Precision(torch.bfloat16)
    half = probe(state, _batch())

    assert full.matmul_dtypes == {"float32": 4}
    assert half.matmul_dtypes == {"bfloat16": 4}


def test_it_tells_the_types_of_the_operands_of_convolutions(tmp_path: Path) -> None:
    state = _setup(tmp_path, nn.Conv1d(32, 8, 3))
    state.precision = Precision(torch.bfloat16)

    shown = probe(state, Batch({"x": torch.ones(2, 32, 9)}, [], {}, 1.0))

    assert shown.matmul_dtypes == {"bfloat16": 5}


def test_it_counts_the_forwards_of_each_block(tmp_path: Path) -> None:
    twice = _Block()
    state = _setup(tmp_path, _Block(), twice, _ChildBlock())
    state.model.append(twice)

    shown = probe(state, _batch())

    assert shown.block_calls == (1, 2, 1)


def test_it_counts_a_forward_that_runs_again_in_the_backward_pass(tmp_path: Path) -> None:
    state = _setup(tmp_path, _Block(), _Block())
    block = state.model[0]  # type: ignore[index]

    def twice(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(
            lambda value: type(block).forward(block, value), x, use_reentrant=False
        )

    block.forward = twice
    shown = probe(state, _batch())

    assert shown.block_calls == (2, 1)


def test_it_adds_up_what_autograd_keeps_each_storage_once_and_no_weights(tmp_path: Path) -> None:
    shown = probe(_setup(tmp_path, _Block(), _Block()), _batch())

    # The input, and the output of each tanh, which the next layer keeps as its input as well.
    assert shown.saved_bytes == 3 * 64 * 32 * 4


def test_blocks_run_as_before_afterwards(tmp_path: Path) -> None:
    own_forward, inherited_forward = _Block.forward, nn.Linear.forward
    state = _setup(tmp_path, _Block(), nn.Linear(32, 32))

    probe(state, _batch())

    assert _Block.forward is own_forward
    assert nn.Linear.forward is inherited_forward
    assert "forward" not in vars(state.model[0])  # type: ignore[index]


def test_a_class_that_inherits_its_forward_inherits_it_again_afterwards(tmp_path: Path) -> None:
    class Heir(_Block):
        pass

    shown = probe(_setup(tmp_path, Heir(), _Block()), _batch())

    assert shown.block_calls == (1, 1)
    assert "forward" not in vars(Heir)


def test_weights_buffers_and_modes_stay(tmp_path: Path) -> None:
    fresh = make_setup(tmp_path).model.state_dict()
    expected = {name: value.clone() for name, value in fresh.items()}

    state = _watch_toy(tmp_path, lambda state: state.model.get_submodule("norm").eval())

    for name, value in state.model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert state.model.training
    assert not state.model.get_submodule("norm").training


def test_running_statistics_stay(tmp_path: Path) -> None:
    state = _watch_toy(tmp_path)

    norm = state.model.get_submodule("norm")
    assert torch.equal(norm.get_buffer("running_mean"), torch.zeros(8))
    assert norm.get_buffer("num_batches_tracked") == 0


def test_gradients_stay_the_very_same(tmp_path: Path) -> None:
    gradient = torch.full((8, 4), 3.0)

    def set_one(state: TrainState) -> None:
        state.model.get_parameter("inner.weight").grad = gradient

    state = _watch_toy(tmp_path, set_one)

    assert state.model.get_parameter("inner.weight").grad is gradient
    assert torch.equal(gradient, torch.full((8, 4), 3.0))
    assert state.model.get_parameter("outer.weight").grad is None


def test_random_states_stay(tmp_path: Path) -> None:
    def draw() -> tuple[Tensor, float, float]:
        return torch.rand(3), float(np.random.rand()), random.random()

    def losses_that_draw(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        draw()
        return TOY.losses(model, batch)

    state = make_setup(tmp_path)
    state.family = replace(TOY, losses=losses_that_draw)
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = draw()

    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    probe(state, state.train_batches.micro_batches(1)[0])
    found = draw()

    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]


def test_all_is_put_back_when_the_losses_fail(tmp_path: Path) -> None:
    def failing_losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        TOY.losses(model, batch)
        raise RuntimeError("out of memory")

    state = make_setup(tmp_path)
    state.family = replace(TOY, losses=failing_losses)
    own_forward, before = nn.Linear.forward, torch.get_rng_state()

    with pytest.raises(RuntimeError, match="out of memory"):
        probe(state, state.train_batches.micro_batches(1)[0])

    assert nn.Linear.forward is own_forward
    assert torch.equal(torch.get_rng_state(), before)
    assert state.model.get_submodule("norm").get_buffer("num_batches_tracked") == 0
