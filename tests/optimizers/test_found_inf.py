"""On a GPU the verdict on a step is the device's alone: no host reads, and nothing half changed.

Without a GPU its road is walked on CPU tensors; that they lie on the host it never notices.
"""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.no_reads import NoReads, copies_to_the_host
from tests.helpers.toy import make_setup
from tests.parity import optimizer_problem as problem
from trainer.core.options import build_options, describe
from trainer.core.registry import discover
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms import prodigy
from trainer.optimizers._core import found_inf, param_table
from trainer.optimizers._core.param_table import TableOptimizer
from trainer.training.loop import train_step

CPU = torch.device("cpu")
SPECS = discover("trainer.optimizers", OptimizerSpec)
PACKAGES = {"adafactor", "adamw_8bit"}
OURS = sorted(set(SPECS) - PACKAGES)
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {} for name in OURS},
    "adamw cautious": {"cautious": True},
    "ademamix cautious": {"cautious": True},
    "lion cautious": {"cautious": True},
    "mars_adamw cautious": {"cautious": True},
    "prodigy slice_p": {"slice_p": 3, "growth_rate": 1.02, "use_bias_correction": True},
    "kron max_size": {"max_size": 7},
    "soap refresh_every": {"refresh_every": 1},
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walk the road of a GPU."""
    monkeypatch.setattr(param_table, "GATED_DEVICES", {"cpu"})
    monkeypatch.setattr(prodigy, "_is_host", lambda scalar: False)


def _build(variant: str) -> torch.optim.Optimizer:
    name = variant.split()[0]
    rate = 1.0 if SPECS[name].default_lr == 1.0 else 1e-3
    options = build_options(SPECS[name].options, {"lr": rate} | VARIANTS[variant], name)
    return SPECS[name].build(problem.make_groups(), options, CPU)


def _weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _step(optimizer: Any, number: int, *, spoiled: float | None = None) -> None:
    """Step as the loop does, with a verdict; `spoiled` is put into every gradient."""
    for index, weight in enumerate(_weights(optimizer)):
        weight.grad = problem.wave(weight.shape, 10 * number + index).float()
        if spoiled is not None:
            weight.grad.view(-1)[1] = spoiled
    optimizer.grad_scale = None
    optimizer.found_inf = torch.tensor(float(spoiled is not None))
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def _everything(optimizer: torch.optim.Optimizer) -> tuple[list[Tensor], dict[str, Any]]:
    weights = [weight.detach().clone() for weight in _weights(optimizer)]
    return weights, copy.deepcopy(optimizer.state_dict())


def _assert_same(first: Any, second: Any) -> None:
    (weights, state), (same_weights, same_state) = first, second
    assert state["param_groups"] == same_state["param_groups"]
    for found, wanted in ((weights, same_weights), (state["state"], same_state["state"])):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("spoiled", [math.nan, math.inf])
@each_variant
def test_a_step_that_does_not_count_changes_nothing(variant: str, spoiled: float) -> None:
    optimizer = _build(variant)
    for number in range(3):
        _step(optimizer, number)
    before = _everything(optimizer)

    with NoReads():
        _step(optimizer, 3, spoiled=spoiled)
        _step(optimizer, 4, spoiled=spoiled)

    _assert_same(_everything(optimizer), before)


@pytest.mark.usefixtures("as_on_a_gpu")
@each_variant
def test_training_goes_on_as_if_the_step_had_not_been(variant: str) -> None:
    disturbed, calm = _build(variant), _build(variant)

    with NoReads():
        for number in range(6):
            _step(calm, number)
            if number in (0, 3):
                _step(disturbed, 77, spoiled=math.nan)
            _step(disturbed, number)

    _assert_same(_everything(disturbed), _everything(calm))


@each_variant
def test_the_road_of_a_gpu_leads_to_the_same_place(
    variant: str, request: pytest.FixtureRequest
) -> None:
    usual, gated = _build(variant), _build(variant)
    for number in range(8):
        _step(usual, number)

    request.getfixturevalue("as_on_a_gpu")
    for number in range(8):
        _step(gated, number)

    for weight, same in zip(_weights(usual), _weights(gated), strict=True):
        torch.testing.assert_close(weight, same, rtol=2e-5, atol=2e-6)


@each_variant
def test_on_a_cpu_a_verdict_that_lets_pass_changes_no_bit(variant: str) -> None:
    asked, unasked = _build(variant), _build(variant)

    for number in range(4):
        _step(asked, number)
        for index, weight in enumerate(_weights(unasked)):
            weight.grad = problem.wave(weight.shape, 10 * number + index).float()
        unasked.step()
    _step(asked, 9, spoiled=math.nan)

    _assert_same(_everything(asked), _everything(unasked))


@pytest.mark.parametrize("variant", ["lion", "muon", "prodigy", "schedule_free_adamw"])
def test_tensors_with_gaps_are_shut_off_too(variant: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("as_on_a_gpu")
    optimizer = _build(variant)
    for weight in _weights(optimizer):
        weight.data = torch.stack([weight.detach()] * 2, -1)[..., 0]
    _step(optimizer, 0)
    before = _everything(optimizer)

    _step(optimizer, 1, spoiled=math.nan)

    _assert_same(_everything(optimizer), before)
    _step(optimizer, 2)
    assert not torch.equal(_weights(optimizer)[0], before[0][0])


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", OURS)
def test_a_steady_step_of_a_run_reads_nothing_whatever_the_verdict(
    name: str, tmp_path: Path
) -> None:
    state = make_setup(tmp_path, optimizer=name, steps=4, clip_norm=1.0)
    train_step(state, 1)
    with torch.no_grad():
        next(state.model.parameters()).view(-1)[0] = math.nan
    before = [value.clone() for value in state.model.state_dict().values()]

    with NoReads(), copies_to_the_host() as copies:
        train_step(state, 2)
        train_step(state, 3)

    assert copies == []
    after = list(state.model.state_dict().values())
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("spoiled", [None, math.nan])
def test_a_step_may_come_in_parts_under_one_verdict(spoiled: float | None) -> None:
    optimizer: Any = _build("schedule_free_adamw")
    _step(optimizer, 0)
    before = _everything(optimizer)
    optimizer.found_inf = torch.tensor(float(spoiled is not None))

    for part, weight in enumerate(_weights(optimizer)):
        for other in _weights(optimizer):
            other.grad = None
        weight.grad = problem.wave(weight.shape, part).float() * (spoiled or 1.0)
        optimizer.step()
    del optimizer.found_inf

    steps = [state["step"] for state in optimizer.state_dict()["state"].values()]
    assert steps == [1 if spoiled else 2] * 3
    if spoiled:
        _assert_same(_everything(optimizer), before)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_scaler_reads_nothing_either_and_leaves_gradients_to_us() -> None:
    optimizer, plain = _build("lion"), _build("lion")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for index, (weight, same) in enumerate(zip(_weights(optimizer), _weights(plain), strict=True)):
        same.grad = problem.wave(weight.shape, index).float()
        weight.grad = 1024.0 * same.grad
    scaler.scale(torch.ones(()))
    plain.step()

    with NoReads():
        scaler.step(optimizer)

    for weight, same in zip(_weights(optimizer), _weights(plain), strict=True):
        torch.testing.assert_close(weight, same, rtol=1e-6, atol=1e-7)


def test_every_entry_of_ours_takes_the_verdict_from_the_device() -> None:
    for name in OURS:
        optimizer = _build(name)
        assert getattr(optimizer, "_step_supports_amp_scaling", False)
        assert name == "adamw" or isinstance(optimizer, TableOptimizer)


def test_all_forms_are_tried() -> None:
    cautious = {n for n in OURS if "cautious" in {i.name for i in describe(SPECS[n].options)}}

    assert cautious == {variant.split()[0] for variant in VARIANTS if "cautious" in variant}


@pytest.fixture
def passes() -> Iterator[list[str]]:
    """Collect the names of list kernels that are called."""
    called: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fused_sgd_", "mul_", "add_", "lerp_", "addcmul_"):
            original = getattr(found_inf.lists, name)

            def note(
                *args: Any, _name: str = name, _original: Any = original, **kwargs: Any
            ) -> Any:
                called.append(_name)
                return _original(*args, **kwargs)

            patch.setattr(found_inf.lists, name, note)
        yield called


def test_the_gate_costs_no_kernel(passes: list[str], request: pytest.FixtureRequest) -> None:
    optimizer = _build("lion")
    _step(optimizer, 0)
    usual = len(passes)

    request.getfixturevalue("as_on_a_gpu")
    passes.clear()
    _step(optimizer, 1)

    assert "fused_sgd_" in passes
    assert len(passes) <= usual
