"""Our optimizers compute what the authors' code computes, in the suite or by golden numbers."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.no_reads import NoReads
from tests.helpers.toy import entry_of
from tests.parity import optimizer_problem as problem
from trainer.optimizers import kron
from trainer.optimizers._algorithms import prodigy

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "optimizers.json").read_text())
# A way of 24 steps from d0 = 1e-6 is too short to see; these rates are found within it.
PRODIGY = {"d0": 1e-3, "weight_decay": 0.0}


def _build(name: str, dtype: torch.dtype = torch.float32, **values: Any) -> torch.optim.Optimizer:
    spec, options = entry_of(name, values)
    return spec.build(problem.make_groups(dtype), options, torch.device("cpu"))


@pytest.mark.parametrize("name", sorted(problem.CASES))
def test_the_published_code_goes_the_same_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1000))

    def same_noise(like: Tensor, seed: int) -> Tensor:
        return 1.7 * problem.wave(like.shape, 5000 + next(calls)).to(like)

    monkeypatch.setattr(kron, "draw_noise", same_noise)

    found = problem.train(_build(name, **problem.CASES[name]["options"]))

    assert problem.distance(found, GOLDEN["traces"][name]) < problem.CASES[name]["limit"]


def test_the_golden_numbers_name_their_source() -> None:
    assert GOLDEN["command"].startswith("PYTHONPATH=. python tests/parity/compare_optimizers.py")
    assert {"MARS", "SOAP", "ml-ademamix", "Muon", "kron-torch"} <= set(GOLDEN["made_with"])
    assert set(GOLDEN["traces"]) == set(problem.CASES)


@pytest.mark.parametrize(
    "values",
    [{}, {"weight_decay": 0.05}, {"use_bias_correction": True}, {"safeguard_warmup": True}],
    ids=str,
)
def test_prodigy_goes_the_way_of_prodigyopt(values: dict[str, Any]) -> None:
    values = PRODIGY | values
    ours = _build("prodigy", torch.float64, **values)
    theirs = _build("prodigy_reference", torch.float64, **values)

    found, wanted = problem.train(ours), problem.train(theirs)

    # They take the new d for the term d * eps, we the old one as in the paper.
    assert problem.distance(found, wanted) < 1e-3
    assert float(ours.param_groups[0]["d"]) > 2 * PRODIGY["d0"]
    assert float(ours.param_groups[0]["d"]) == pytest.approx(theirs.param_groups[0]["d"], rel=1e-3)


def test_prodigy_differs_from_prodigyopt_by_the_term_with_epsilon_only() -> None:
    ours = _build("prodigy", torch.float64, eps=1e-15, **PRODIGY)
    theirs = _build("prodigy_reference", torch.float64, eps=1e-15, **PRODIGY)

    assert problem.distance(problem.train(ours), problem.train(theirs)) < 1e-9


def test_prodigy_on_a_gpu_takes_the_same_way_without_looking_at_d(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = problem.train(_build("prodigy", torch.float64, **PRODIGY))

    monkeypatch.setattr(prodigy, "_is_host", lambda scalar: False)
    with NoReads():
        found = problem.train(_build("prodigy", torch.float64, **PRODIGY))

    assert problem.distance(found, wanted) < 1e-9


def test_prodigy_with_slices_goes_the_way_of_prodigyopt() -> None:
    package = importlib.import_module("prodigyopt")
    theirs = package.Prodigy(problem.make_groups(torch.float64), d0=1e-3, slice_p=5)
    theirs.param_groups[0]["weight_decay"] = 0.0
    ours = _build("prodigy", torch.float64, slice_p=5, **PRODIGY)
    ours.param_groups[0]["weight_decay"] = 0.0

    assert problem.distance(problem.train(ours), problem.train(theirs)) < 1e-3


def test_schedule_free_goes_the_way_of_schedulefree() -> None:
    values = {"lr": 1e-2, "warmup_steps": 5, "weight_decay": 0.05}
    ours = _build("schedule_free_adamw", torch.float64, **values)
    theirs = _build("schedule_free_reference", torch.float64, **values)

    assert problem.distance(problem.train(ours), problem.train(theirs)) < 1e-9
    _set_modes(ours, theirs)
    for mine, other in zip(*(_weights(o) for o in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", ["match_adamw", "original"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_goes_the_way_of_torch(scale: str, nesterov: bool) -> None:
    adjust = {"match_adamw": "match_rms_adamw", "original": "original"}[scale]
    ours = _build("muon", lr=1e-2, scale=scale, nesterov=nesterov)
    groups = problem.make_groups()
    theirs = torch.optim.Muon(
        groups[0]["params"],
        lr=1e-2,
        weight_decay=problem.MATRIX_DECAY,
        nesterov=nesterov,
        adjust_lr_fn=adjust,
    )

    problem.train(ours)
    problem.train(theirs)

    # They iterate in bfloat16 also on a CPU.
    for mine, other in zip(_weights(ours)[:2], _weights(theirs), strict=True):
        torch.testing.assert_close(mine, other, rtol=0.05, atol=0.01)


def _weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight.detach() for group in optimizer.param_groups for weight in group["params"]]


def _set_modes(*optimizers: Any) -> None:
    for optimizer in optimizers:
        optimizer.eval()
