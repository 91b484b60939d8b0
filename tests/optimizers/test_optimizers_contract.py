"""Every optimizer works with what a run does: clipping, scaling, accumulation, late gradients."""

import copy
import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.no_reads import NoReads
from tests.helpers.toy import OPTIMIZERS, entry_of, make_setup
from tests.parity import optimizer_problem as problem
from trainer.commands.main import main
from trainer.config.resolve import find_optimizer
from trainer.core.errors import ConfigError
from trainer.core.events import Event, StepDone
from trainer.core.options import describe
from trainer.core.registry import discover
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.mars import VECTOR_BETAS
from trainer.optimizers._core import param_table
from trainer.optimizers._core.param_groups import param_groups
from trainer.optimizers._core.warmup import warmed_up
from trainer.optimizers.muon import count_projections, is_hidden
from trainer.training.loop import train

CPU = torch.device("cpu")
SPECS = discover("trainer.optimizers", OptimizerSpec)
PACKAGES = {"adafactor", "adamw", "adamw_8bit"}
OURS = sorted(set(SPECS) - PACKAGES)
CAUTIOUS = sorted(n for n in SPECS if "cautious" in {i.name for i in describe(SPECS[n].options)})
RATES = {"lion": 1e-3, "mars_lion": 1e-3, "soap_ademamix": 1e-3}

each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
each_of_ours = pytest.mark.parametrize("name", OURS)


def _rate(name: str) -> float:
    return 1.0 if find_optimizer(name).default_lr == 1.0 else RATES.get(name, 1e-2)


def _build(name: str, groups: Any = None, **values: Any) -> torch.optim.Optimizer:
    spec, options = entry_of(name, {"lr": _rate(name)} | values)
    return spec.build(groups or problem.make_groups(), options, CPU)


def _weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _losses(events: list[Event]) -> list[float]:
    return [event.metrics["train/loss"] for event in events if isinstance(event, StepDone)]


@each_optimizer
def test_the_toy_run_learns(name: str, tmp_path: Path) -> None:
    state = make_setup(tmp_path, optimizer=name, steps=60, clip_norm=1.0)
    state.base_lr = {"adafactor": 3e-2, "soap_ademamix": 4e-3}.get(name, state.base_lr)
    events: list[Event] = []

    train(state, events.append)

    losses = _losses(events)
    assert sum(losses[-10:]) < sum(losses[:10])


@each_optimizer
def test_a_batch_in_parts_is_the_whole_batch(name: str) -> None:
    whole, parted = _build(name), _build(name)

    for _ in range(6):
        for number, (weight, same) in enumerate(
            zip(_weights(whole), _weights(parted), strict=True)
        ):
            grads = [problem.wave(weight.shape, 10 * number + part).float() for part in range(4)]
            weight.grad, same.grad = torch.stack(grads).sum(0), torch.zeros_like(same)
            for grad in grads:
                same.grad += grad
        whole.step()
        parted.step()

    for weight, same in zip(_weights(whole), _weights(parted), strict=True):
        torch.testing.assert_close(weight, same, rtol=1e-3, atol=1e-4)


@each_optimizer
def test_a_scaler_of_gradients_changes_nothing_and_skips_what_overflows(name: str) -> None:
    plain, scaled = _build(name), _build(name)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    for step in range(5):
        for number, weight in enumerate(_weights(plain)):
            weight.grad = problem.wave(weight.shape, 10 * step + number).float()
        plain.step()
        for number, weight in enumerate(_weights(scaled)):
            weight.grad = 1024.0 * problem.wave(weight.shape, 10 * step + number).float()
        scaler.scale(torch.ones(()))
        scaler.unscale_(scaled)
        scaler.step(scaled)
        scaler.update()
    before = [weight.detach().clone() for weight in _weights(scaled)]
    for weight in _weights(scaled):
        weight.grad = torch.full_like(weight, math.inf)
    scaler.step(scaled)
    scaler.update()

    for weight, same, kept in zip(_weights(plain), _weights(scaled), before, strict=True):
        torch.testing.assert_close(weight, same, rtol=1e-5, atol=1e-7)
        assert torch.equal(same, kept)


@each_optimizer
def test_gradients_that_come_late_resume_exactly(name: str) -> None:
    def step(optimizer: torch.optim.Optimizer, number: int) -> None:
        late = _weights(optimizer)[1]
        for index, weight in enumerate(_weights(optimizer)):
            weight.grad = problem.wave(weight.shape, 10 * number + index).float()
        late.grad = late.grad if number % 3 == 2 else None
        optimizer.step()

    first, second = _build(name), _build(name)
    for number in range(5):
        step(first, number)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    for weight, value in zip(_weights(second), _weights(first), strict=True):
        weight.data.copy_(value.data)

    for number in range(5, 10):
        step(first, number)
        step(second, number)

    for weight, same in zip(_weights(first), _weights(second), strict=True):
        assert torch.equal(weight, same)


@each_of_ours
def test_a_step_reads_nothing_from_the_device(name: str) -> None:
    optimizer = _build(name)

    with NoReads():
        problem.train(optimizer, 3)

    assert _weights(optimizer)[0].isfinite().all()


@each_of_ours
def test_gradients_are_left_as_they_are(name: str) -> None:
    optimizer = _build(name)
    for number, weight in enumerate(_weights(optimizer)):
        weight.grad = problem.wave(weight.shape, number).float()

    optimizer.step()

    for number, weight in enumerate(_weights(optimizer)):
        assert torch.equal(weight.grad, problem.wave(weight.shape, number).float())


@each_of_ours
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_are_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(ConfigError, match="float32"):
        _build(name, problem.make_groups(dtype))


@each_of_ours
def test_weights_that_do_not_lie_in_one_piece_are_trained_alike(name: str) -> None:
    groups = problem.make_groups()
    groups[0]["params"] = [
        nn.Parameter(w.detach().t().contiguous().t()) for w in groups[0]["params"]
    ]

    found = problem.train(_build(name, groups), 6)

    assert problem.distance(found, problem.train(_build(name), 6)) < 1e-4


@each_of_ours
def test_pieces_make_no_difference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = problem.train(_build(name), 6)

    monkeypatch.setattr(param_table, "CPU_PIECE", 16)
    found = problem.train(_build(name), 6)

    assert problem.distance(found, wanted) < 1e-4


@pytest.mark.parametrize("name", CAUTIOUS)
def test_a_cautious_step_never_goes_against_the_gradient(name: str) -> None:
    optimizer = _build(name, cautious=True)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    problem.train(optimizer, 5)
    matrix = _weights(optimizer)[0]
    before = matrix.detach().clone()
    assert matrix.grad is not None
    # The mean points one way, the gradient of the step the other way in half of the entries.
    matrix.grad = matrix.grad * torch.tensor([1.0, -1.0]).repeat(4)

    optimizer.step()

    moved = before - matrix.detach()
    assert (moved * matrix.grad >= 0).all()
    assert 0 < int((moved == 0).sum()) < moved.numel()


def test_lists_of_small_tensors_are_worked_on_together() -> None:
    columns = [[torch.ones(3), torch.ones(4), torch.ones(2**19), torch.ones(5)]]

    sizes = [[piece.numel() for piece in pieces[0]] for pieces in param_table.cut(columns)]

    assert sizes == [[2**18], [2**18], [3, 4, 5]]


def test_mars_keeps_a_copy_of_the_gradient() -> None:
    optimizer = _build("mars_adamw")
    matrix = _weights(optimizer)[0]
    matrix.grad = torch.ones_like(matrix)
    optimizer.step()

    matrix.grad.zero_()

    assert torch.equal(optimizer.state[matrix]["last_grad"], torch.ones_like(matrix))


def test_mars_corrects_convolutions_and_gives_vectors_adamw() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3))
    optimizer = _build("mars_adamw", param_groups(layer, 0.01))
    sum(weight.square().sum() for weight in layer.parameters()).backward()

    optimizer.step()

    kinds = {tuple(weight.shape): set(state) for weight, state in optimizer.state.items()}
    assert "last_grad" in kinds[6, 4, 3]
    assert "last_grad" not in kinds[6, 1, 1] | kinds[(6,)]
    assert VECTOR_BETAS == (0.9, 0.95)


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("gpt.h.0.mlp.c_fc.weight", True),
        ("encoder.multihead_attn.in_proj_weight", True),
        ("mel_head.weight", False),
        ("decoder.mel_linear.weight", False),
        ("head.weight", False),
    ],
)
def test_muon_knows_output_layers_by_name(name: str, hidden: bool) -> None:
    assert is_hidden(name, torch.ones(4, 4), ["head", "mel_linear"]) is hidden


def test_muon_parts_joint_projections() -> None:
    assert count_projections("gpt.h.0.attn.c_attn.weight", torch.ones(4, 12)) == 3
    assert count_projections("attn.in_proj_weight", torch.ones(12, 4)) == 3
    assert count_projections("gpt.h.0.mlp.c_fc.weight", torch.ones(4, 12)) == 1


def test_muon_orthogonalises_each_projection() -> None:
    network = nn.MultiheadAttention(4, 1, bias=False)
    optimizer = _build("muon", param_groups(network, 0.0), lr=1.0, nesterov=False)
    before = network.in_proj_weight.detach().clone()
    network.in_proj_weight.grad = problem.wave((12, 4), 3).float()

    optimizer.step()

    for step in (before - network.in_proj_weight.detach()).chunk(3):
        sizes = torch.linalg.svdvals(step) / (0.2 * 2)
        assert 0.5 < float(sizes.min()) <= float(sizes.max()) < 1.5


def test_soap_leaves_large_sides_alone() -> None:
    optimizer = _build("soap", max_size=8)

    problem.train(optimizer, 3)

    kept = [{"left", "right"} & set(optimizer.state[weight]) for weight in _weights(optimizer)]
    assert kept == [{"left", "right"}, {"right"}, set()]


def test_kron_refits_ever_more_rarely() -> None:
    optimizer = _build("kron", refit_steps=2, refit_share=0.5)
    optimizer.param_groups[0]["count"] = 3000

    problem.train(optimizer, 9)

    assert optimizer.param_groups[0]["num_refits"] == 4


def test_the_ramp_of_ademamix_ends_where_it_should() -> None:
    steps = [warmed_up(5.0, 0.9, 0.999, step, 100) for step in (1, 50, 100, 1000)]

    assert steps[0][0] == pytest.approx(0.05)
    assert 0.9 < steps[0][1] < steps[1][1] < 0.999
    assert steps[2:] == [(5.0, 0.999)] * 2


def test_prodigy_saves_plain_numbers_and_keeps_d_on_the_device_while_it_trains() -> None:
    optimizer = _build("prodigy")
    problem.train(optimizer, 3)

    saved = optimizer.state_dict()

    assert all(isinstance(group["d"], float) for group in saved["param_groups"])
    first, second = optimizer.param_groups
    assert torch.is_tensor(first["d"]) and first["d"] is second["d"]
    assert copy.deepcopy(optimizer).state_dict()["param_groups"] == saved["param_groups"]


def test_prodigy_waits_while_all_gradients_are_zero() -> None:
    optimizer = _build("prodigy", weight_decay=0.0)
    before = [weight.detach().clone() for weight in _weights(optimizer)]
    for weight in _weights(optimizer):
        weight.grad = torch.zeros_like(weight)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0

    optimizer.step()

    assert float(optimizer.param_groups[0]["d"]) == 1e-6
    assert all(map(torch.equal, _weights(optimizer), before))


def test_schedule_free_refuses_a_step_from_the_average() -> None:
    optimizer: Any = _build("schedule_free_adamw")
    problem.train(optimizer, 2)
    optimizer.eval()

    with pytest.raises(ConfigError, match="set_mode"):
        optimizer.step()


def test_research_entries_carry_a_warning() -> None:
    research = {name for name, spec in SPECS.items() if spec.experimental}

    assert research == {"kron", "mars_shampoo", "prodigy_schedule_free", "soap_ademamix"}
    assert all(SPECS[name].warning.endswith(".") for name in research)
    assert all(SPECS[name].advice.startswith("For research. ") for name in research)
    assert SPECS["adamw"].advice == ""


def test_the_help_tells_what_to_know_before_choosing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--optimizer", "kron", "--help"])

    shown = " ".join(capsys.readouterr().out.split())
    assert "For research. There are no published results" in shown
