"""Weights in bf16: what is updated stays fp32, or is rounded by chance; both resume bit for bit."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.helpers.toy import OPTIMIZERS, make_setup
from trainer.checkpoints.checkpoint import restore_checkpoint, save_checkpoint
from trainer.config.resolve import find_optimizer
from trainer.core.errors import ConfigError
from trainer.core.events import RunAdapted
from trainer.core.options import build_options
from trainer.core.registry import discover
from trainer.core.run_config import RunConfig
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import TrainState
from trainer.optimizations._core import half_weights
from trainer.optimizations._core.half_weights import stochastic_round_
from trainer.optimizers._core.build import rebuild_optimizer
from trainer.state.ema import start_average
from trainer.state.probe import probe
from trainer.state.weights import evaluation_weights, fp32_weights
from trainer.training.evaluate import validate
from trainer.training.loop import train_step
from trainer.training.oom_recovery import restore_adaptation

CATALOG = discover("trainer.optimizations", Optimization)
SPECS = {name: find_optimizer(name) for name in OPTIMIZERS}
AVERAGING = {name for name, spec in SPECS.items() if spec.set_mode is not None}
IN_PARTS = [name for name in OPTIMIZERS if SPECS[name].in_parts]
CPU = torch.device("cpu")

each_kind = pytest.mark.parametrize("updates", ["master", "stochastic"])


def _make(folder: Path, *boxes: tuple[str, dict[str, Any]], **values: Any) -> TrainState:
    """Return a toy run with boxes applied in this order, its optimizer made as `assemble` does."""
    chosen: dict[str, Any] = {"clip_norm": None, **values}
    train_state = make_setup(folder, **chosen)
    train_state.optimizer = rebuild_optimizer(train_state)
    for box, chosen in boxes:
        CATALOG[box].apply(train_state, build_options(CATALOG[box].options, chosen, box))
    return train_state


def _half(folder: Path, updates: str = "master", **values: Any) -> TrainState:
    return _make(folder, ("bf16_weights", {"updates": updates}), **values)


def _train(train_state: TrainState, steps: range) -> list[float]:
    return [train_step(train_state, step)["error"].item() for step in steps]


def _exact(train_state: TrainState) -> dict[str, Tensor]:
    with fp32_weights(train_state):
        return {name: value.clone() for name, value in train_state.model.state_dict().items()}


def _state(train_state: TrainState) -> OptimizationStatus:
    return CATALOG["bf16_weights"].status(
        train_state, probe(train_state, train_state.train_batches.micro_batches(1)[0])
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_masters_every_optimizer_trains_as_with_mixed_precision(
    name: str, tmp_path: Path
) -> None:
    mixed = _make(tmp_path / "a", ("mixed_precision", {}), optimizer=name)
    half = _half(tmp_path / "b", optimizer=name)

    losses = [_train(train_state, range(1, 9)) for train_state in (mixed, half)]

    assert losses[1][0] == losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert half.model.get_parameter("inner.weight").dtype == torch.bfloat16


def test_gradients_are_those_of_mixed_precision_bit_for_bit(tmp_path: Path) -> None:
    mixed = _make(tmp_path / "a", ("mixed_precision", {}))
    half = _half(tmp_path / "b")

    for train_state in (mixed, half):
        torch.manual_seed(3)
        batch = train_state.train_batches.micro_batches(1)[0]
        with train_state.precision.autocast(CPU):
            losses = train_state.family.losses(train_state.model, batch)
        losses["error"].backward()

    pairs = zip(mixed.model.parameters(), half.model.parameters(), strict=True)
    for plain, rounded in pairs:
        assert plain.grad is not None and rounded.grad is not None
        assert torch.equal(rounded.grad.float(), plain.grad)


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - AVERAGING))
def test_without_masters_every_optimizer_still_learns(name: str, tmp_path: Path) -> None:
    half = _half(tmp_path, "stochastic", optimizer=name, clip_norm=1.0, steps=60)

    losses = _train(half, range(1, 41))

    assert sum(losses[-10:]) < sum(losses[:10])


def test_without_masters_the_loss_is_that_of_mixed_precision(tmp_path: Path) -> None:
    mixed = _make(tmp_path / "a", ("mixed_precision", {}), steps=60)
    half = _half(tmp_path / "b", "stochastic", steps=60)

    losses = [_train(train_state, range(1, 41)) for train_state in (mixed, half)]

    assert sum(losses[1]) == pytest.approx(sum(losses[0]), rel=1e-2)


@each_kind
@pytest.mark.parametrize(
    "values",
    [{"num_micro_steps": 2}, {"clip_norm": 0.5}, {"ema_decay": 0.9}, {"optimizer": "prodigy"}],
    ids=str,
)
def test_a_resume_repeats_every_bit(updates: str, values: dict[str, Any], tmp_path: Path) -> None:
    whole = _half(tmp_path / "whole", updates, **values)
    first, second = (_half(tmp_path / "parts", updates, **values) for _ in range(2))
    expected = _train(whole, range(1, 9))

    losses = _train(first, range(1, 5))
    saved = save_checkpoint(first, 4, best=False)
    restore_checkpoint(second, tmp_path / "parts" / saved.path)
    losses += _train(second, range(5, 9))

    assert losses == expected
    for name, value in _exact(whole).items():
        assert torch.equal(_exact(second)[name], value), name


def test_a_checkpoint_holds_the_masters(tmp_path: Path) -> None:
    train_state = _half(tmp_path)
    _train(train_state, range(1, 5))

    saved = save_checkpoint(train_state, 4, best=False)

    written = load_file(tmp_path / saved.path / "model.safetensors")
    for name, master in train_state.master_weights.items():
        assert written[name].dtype == torch.float32
        assert torch.equal(written[name], master)
        assert not torch.equal(written[name], written[name].bfloat16().float())


@each_kind
def test_evaluation_sees_fp32_weights_and_changes_nothing(updates: str, tmp_path: Path) -> None:
    train_state = _half(tmp_path, updates)
    _train(train_state, range(1, 4))
    before = [value.clone() for value in train_state.model.parameters()]

    found = validate(train_state)
    with evaluation_weights(train_state):
        kinds = {value.dtype for value in train_state.model.parameters()}

    assert found["val/loss"] > 0
    assert kinds == {torch.float32}
    for value, same in zip(train_state.model.parameters(), before, strict=True):
        assert value.dtype == same.dtype and torch.equal(value, same)


def test_weights_are_rounded_as_before_when_memory_runs_out_on_the_way_to_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_state = _half(tmp_path, "stochastic")
    before = {name: value.clone() for name, value in train_state.model.state_dict().items()}
    room = [1, 1]

    def widen(value: Tensor) -> Tensor:
        if not room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        room.pop()
        return value.to(torch.float32)

    with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
        patched.setattr(Tensor, "float", widen)
        with fp32_weights(train_state):
            pass

    after = train_state.model.state_dict()
    assert [value.dtype for value in after.values()] == [value.dtype for value in before.values()]
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_the_average_follows_the_masters(tmp_path: Path) -> None:
    train_state = _half(tmp_path, ema_decay=0.9)
    train_state.average = start_average(train_state.model)

    train_step(train_state, 1)

    before = make_setup(tmp_path / "other").model.get_parameter("inner.weight")
    weight = 1 - 2 / 11
    expected = before.bfloat16().float().lerp(train_state.master_weights["inner.weight"], weight)
    assert torch.allclose(train_state.average["inner.weight"], expected, atol=1e-6)


@each_kind
def test_a_step_without_a_finite_gradient_changes_nothing(updates: str, tmp_path: Path) -> None:
    train_state = _half(tmp_path, updates)
    _train(train_state, range(1, 3))
    before = _exact(train_state)
    plain_losses = train_state.family.losses

    object.__setattr__(
        train_state.family,
        "losses",
        lambda model, batch: {"error": model(batch["x"]).sum() * torch.nan},
    )
    try:
        train_step(train_state, 3)
    finally:
        object.__setattr__(train_state.family, "losses", plain_losses)

    for name, value in _exact(train_state).items():
        assert torch.equal(value, before[name]), name


@each_kind
def test_lora_trains_doubles_of_its_adapters_only(updates: str, tmp_path: Path) -> None:
    boxes = [("lora", {"rank": 2, "target": "model"}), ("bf16_weights", {"updates": updates})]
    train_state = _make(tmp_path, *boxes)
    frozen = train_state.model.get_parameter("inner.weight")
    before = frozen.clone()

    losses = _train(train_state, range(1, 21))

    assert sum(losses[-5:]) < sum(losses[:5])
    assert frozen.dtype == torch.bfloat16 and torch.equal(frozen, before)
    assert all("lora" in name for name in train_state.master_weights)
    assert (
        CATALOG["lora"]
        .status(train_state, probe(train_state, train_state.train_batches.largest()))
        .on
    )
    with evaluation_weights(train_state):
        folded = train_state.model.state_dict()["inner.weight"]
    assert folded.dtype == torch.float32 and not torch.equal(folded, before.float())


def test_it_goes_with_gradient_checkpointing(tmp_path: Path) -> None:
    plain = _half(tmp_path / "a")
    boxes = [("gradient_checkpointing", {"level": "full"}), ("bf16_weights", {})]
    checkpointed = _make(tmp_path / "b", *boxes)

    assert _train(checkpointed, range(1, 5)) == _train(plain, range(1, 5))


@each_kind
def test_a_run_that_goes_back_can_go_on_in_full_precision(updates: str, tmp_path: Path) -> None:
    train_state = _half(tmp_path, updates, num_micro_steps=2)
    _train(train_state, range(1, 4))
    before = _exact(train_state)

    restore_adaptation(train_state, RunAdapted(4, "NaN", rollbacks=1, full_precision=True))

    assert {value.dtype for value in train_state.model.parameters()} == {torch.float32}
    for name, value in train_state.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    plain = _make(tmp_path / "plain", num_micro_steps=2)
    plain.model.load_state_dict(before)
    plain.optimizer.load_state_dict(copy.deepcopy(train_state.optimizer.state_dict()))
    assert _train(train_state, range(4, 9)) == _train(plain, range(4, 9))
    assert not _state(train_state).on


def test_gradients_of_micro_steps_are_added_up_in_fp32(tmp_path: Path) -> None:
    config = RunConfig().to_json()
    config["training"] |= {"accumulate": 2, "steps": 9}
    train_state = make_setup(tmp_path)
    train_state.config = RunConfig.from_json(config)

    CATALOG["bf16_weights"].apply(
        train_state, build_options(CATALOG["bf16_weights"].options, {}, "")
    )
    for parameter in train_state.model.parameters():
        parameter.sum().backward()

    assert {
        value.grad.dtype for value in train_state.model.parameters() if value.grad is not None
    } == {torch.float32}


@each_kind
def test_what_is_really_on_is_told(updates: str, tmp_path: Path) -> None:
    train_state = _half(tmp_path, updates)

    state = _state(train_state)

    words = {"master": "fp32 masters of", "stochastic": "no masters"}
    assert state.on
    assert "49 of 65 weights in bf16" in state.detail and words[updates] in state.detail


@pytest.mark.parametrize("name", sorted(AVERAGING & set(OPTIMIZERS)))
def test_averages_that_live_in_the_weights_are_not_rounded_by_chance(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="stochastic rounding would blur"):
        _half(tmp_path, "stochastic", optimizer=name)


def test_fp16_is_refused_beside_it(tmp_path: Path) -> None:
    train_state = make_setup(tmp_path)
    values = train_state.config.to_json() | {"optimizations": {"mixed_precision": {"mode": "fp16"}}}
    train_state.config = RunConfig.from_json(json.loads(json.dumps(values)))

    with pytest.raises(ConfigError, match="Choose bf16 or auto there"):
        CATALOG["bf16_weights"].apply(train_state, CATALOG["bf16_weights"].options())


@pytest.mark.parametrize("name", IN_PARTS)
def test_steps_of_some_weights_at_a_time_are_one_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its noise would depend on the bucket.
    monkeypatch.setattr(half_weights, "stochastic_round_", lambda values, generator: None)
    whole = _half(tmp_path / "a", "stochastic", optimizer=name)
    parted = _half(tmp_path / "b", "stochastic", optimizer=name)

    _train(whole, range(1, 5))
    monkeypatch.setattr(half_weights, "BUCKET", 16)
    _train(parted, range(1, 5))

    states = [train_state.optimizer.state_dict()["state"] for train_state in (whole, parted)]
    for number, state in states[0].items():
        leaves = zip(tree_leaves(state), tree_leaves(states[1][number]), strict=True)
        for one, other in leaves:
            assert torch.allclose(torch.as_tensor(one), torch.as_tensor(other))
    for one, other in zip(whole.model.parameters(), parted.model.parameters(), strict=True):
        assert torch.allclose(one, other)


def _rounded(value: float, count: int, seed: int = 0) -> Tensor:
    values = torch.full((count,), value)
    stochastic_round_(values, torch.Generator().manual_seed(seed))
    return values


@pytest.mark.parametrize("value", [1.0 + 2**-11, -0.3, 3.14159, 1e-30, -7e20])
def test_rounding_by_chance_is_right_on_average(value: float) -> None:
    found = _rounded(value, 200_000)

    neighbours = found.unique()
    gap = (neighbours.max() - neighbours.min()).item()
    assert len(neighbours) == 2
    assert torch.equal(found.bfloat16().float(), found)
    assert neighbours.min() <= value <= neighbours.max()
    # Five standard errors of a coin thrown as often.
    assert found.double().mean().item() == pytest.approx(value, abs=5 * 0.5 * gap / 200_000**0.5)


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, float("inf"), float("-inf"), float("nan")])
def test_what_bf16_holds_is_not_moved(value: float) -> None:
    expected = torch.full((4096,), value)

    assert torch.equal(_rounded(value, 4096).nan_to_num(7.0), expected.nan_to_num(7.0))


def test_chance_is_a_function_of_its_seed() -> None:
    assert torch.equal(_rounded(0.3, 5000, seed=1), _rounded(0.3, 5000, seed=1))
    assert not torch.equal(_rounded(0.3, 5000, seed=1), _rounded(0.3, 5000, seed=2))


def _after_tiny_steps(write: Callable[[Tensor], Tensor]) -> float:
    """Return the mean of weights of 1 after 100 updates of a 64th of bf16's step there."""
    weights = torch.ones(4096, dtype=torch.bfloat16)
    for _ in range(100):
        weights = write(weights.float() + 2**-7 / 64)
    return weights.float().mean().item()


def test_updates_too_small_for_bf16_are_not_lost() -> None:
    generator = torch.Generator().manual_seed(0)

    def by_chance(values: Tensor) -> Tensor:
        stochastic_round_(values, generator)
        return values.bfloat16()

    expected = 1 + 100 * 2**-7 / 64
    assert _after_tiny_steps(lambda values: values.bfloat16()) == 1.0
    assert _after_tiny_steps(by_chance) == pytest.approx(expected, rel=2e-4)


def test_only_layers_that_compute_in_bf16_anyway_are_rounded(tmp_path: Path) -> None:
    model = nn.ModuleDict(
        {"linear": nn.Linear(2, 2), "table": nn.Embedding(3, 2), "norm": nn.LayerNorm(2)}
    )
    model["tied"] = nn.Linear(2, 3, bias=False)
    model["tied"].weight = model["table"].weight

    half_weights.HalfWeights(model, is_stochastic=False, in_parts=False, exact_sums=False, seed=0)

    rounded = {name for name, value in model.named_parameters() if value.dtype == torch.bfloat16}
    assert rounded == {"linear.weight", "linear.bias"}
