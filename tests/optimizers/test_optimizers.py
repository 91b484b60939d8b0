"""Every optimizer of the catalog keeps the contract: it learns, resumes exactly and is honest."""

import copy
import io
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.toy import OPTIMIZERS, PACKAGED, entry_of
from trainer.config.resolve import find_optimizer
from trainer.config.schedules import SCHEDULES
from trainer.core.errors import ConfigError, MissingDependency
from trainer.core.options import build_options, describe
from trainer.core.registry import discover
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms import prodigy_cpu
from trainer.optimizers._core.param_groups import param_groups

CPU = torch.device("cpu")
SPECS = discover("trainer.optimizers", OptimizerSpec)
OPTIONAL_PACKAGES = {"adamw_8bit": "bitsandbytes"} | PACKAGED
PRODIGIES = ("prodigy", "prodigy_reference", "prodigy_schedule_free")
# Rates that suit a problem of this size; defaults suit large models that are tuned.
RATES = {
    "adafactor": 3e-2,
    "lion": 3e-3,
    "mars_lion": 3e-3,
    "soap_ademamix": 3e-3,
    "schedule_free_adamw": 3e-2,
    "schedule_free_reference": 3e-2,
    **dict.fromkeys(PRODIGIES, 1.0),
}

each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
each_spec = pytest.mark.parametrize("name", sorted(SPECS))


class _Network(nn.Module):
    """Has a matrix, a bias, a norm, an embedding, and a layer that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 8)
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 2)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(self.words(x)).tanh()))


def _network() -> _Network:
    torch.manual_seed(0)
    return _Network()


def _build(name: str, model: nn.Module, **values: Any) -> torch.optim.Optimizer:
    spec, options = entry_of(name, {"lr": RATES.get(name, 1e-2)} | values)
    return spec.build(param_groups(model, 0.01), options, CPU)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(0, 5, (16,), generator=generator)
    target = torch.stack([x.float() - 2, (x % 2).float()], dim=1)
    optimizer.zero_grad(set_to_none=True)
    loss = (model(x) - target).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def _lr_of_first_group(optimizer: torch.optim.Optimizer) -> float:
    return optimizer.param_groups[0]["lr"]


def _weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@each_optimizer
def test_the_loss_falls_to_a_tenth(name: str) -> None:
    model = _network()
    optimizer = _build(name, model)

    losses = [_step(model, optimizer, step) for step in range(250)]

    assert losses[-1] < 0.1 * losses[0]


@each_optimizer
def test_a_saved_and_loaded_state_goes_on_bit_for_bit(name: str) -> None:
    model = _network()
    optimizer = _build(name, model)
    for step in range(7):
        _step(model, optimizer, step)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)

    file.seek(0)
    state = torch.load(file, weights_only=True)
    other_model = _network()
    other = _build(name, other_model)
    other_model.load_state_dict(state["model"])
    other.load_state_dict(state["optimizer"])
    for step in range(7, 14):
        _step(model, optimizer, step)
        _step(other_model, other, step)

    for value, resumed in zip(_weights(model), _weights(other_model), strict=True):
        assert torch.equal(value, resumed)


@each_optimizer
def test_parameters_without_a_gradient_stay_as_they_are(name: str) -> None:
    model = _network()
    before = copy.deepcopy(model.unused.state_dict())
    optimizer = _build(name, model)

    _step(model, optimizer, 1)

    assert torch.equal(model.unused.weight, before["weight"])


@each_optimizer
def test_the_state_takes_the_memory_that_is_claimed(name: str) -> None:
    layer = nn.Linear(256, 256, bias=False)
    optimizer = _build(name, layer)

    layer(torch.ones(1, 256)).square().mean().backward()
    optimizer.step()

    tensors = [value for value in optimizer.state[layer.weight].values() if torch.is_tensor(value)]
    measured = sum(value.nbytes for value in tensors) / layer.weight.numel()
    assert measured == pytest.approx(find_optimizer(name).state_bytes, rel=0.01)


@each_optimizer
def test_decay_touches_matrices_and_spares_the_rest(name: str) -> None:
    model = _network()

    groups = _build(name, model).param_groups

    decayed = {id(value) for group in groups if group["weight_decay"] for value in group["params"]}
    assert decayed == {id(model.first.weight), id(model.last.weight), id(model.unused.weight)}


@each_optimizer
def test_the_rate_of_the_groups_is_obeyed(name: str) -> None:
    model = _network()
    optimizer = _build(name, model)
    before = _weights(model)

    for group in optimizer.param_groups:
        group["lr"] = 0.0
    _step(model, optimizer, 1)

    for value, old in zip(_weights(model), before, strict=True):
        assert torch.equal(value, old)


@each_optimizer
def test_the_rate_that_is_told_is_a_positive_number(name: str) -> None:
    model = _network()
    optimizer = _build(name, model)
    _step(model, optimizer, 1)

    rate = (find_optimizer(name).effective_lr or _lr_of_first_group)(optimizer)

    assert 0 < rate <= 1


@each_spec
def test_the_spec_is_complete(name: str) -> None:
    spec = SPECS[name]
    options = {info.name: info for info in describe(spec.options)}

    assert spec.paper.startswith("https://")
    assert options["lr"].default is None
    assert set(spec.schedules) <= set(SCHEDULES)
    assert all(info.label and info.help.endswith(".") for info in options.values())
    assert build_options(spec.options, {"lr": spec.default_lr}, name).lr == spec.default_lr


@each_optimizer
@pytest.mark.parametrize("values", [{"lr": -1.0}, {"beta1": 1.0}, {"eps": 0.0}])
def test_values_that_cannot_work_are_refused(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        _build(name, _network(), **values)


@pytest.mark.parametrize(("name", "package"), OPTIONAL_PACKAGES.items())
@pytest.mark.fault("E11")
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(MissingDependency, match=f"pip install {package}"):
        _build(name, _network())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_adamw_is_fused(device: str) -> None:
    spec = SPECS["adamw"]

    optimizer = spec.build(param_groups(_network(), 0.0), spec.options(), torch.device(device))

    assert optimizer.defaults["fused"] is True


@pytest.mark.parametrize("name", PACKAGED)
def test_the_package_is_used_where_it_is_chosen(name: str) -> None:
    spec, _ = entry_of(name, {})

    theirs, ours = _build(name, _network()), _build(spec.name, _network())

    assert type(theirs).__module__.split(".")[0] == PACKAGED[name]
    assert type(ours).__module__.startswith("trainer.optimizers.")


@pytest.mark.parametrize("name", ["ademamix", "lion", "prodigy", "schedule_free_adamw"])
def test_a_rule_that_was_compiled_goes_on_without_a_compiler(name: str) -> None:
    now, then = _network(), _network()

    for model, values in ((now, {}), (then, {"compiled": True})):
        optimizer = _build(name, model, **values)
        for step in range(5):
            _step(model, optimizer, step)

    assert all(map(torch.equal, _weights(now), _weights(then)))


def test_prodigy_finds_a_larger_rate_and_tells_it() -> None:
    model = _network()
    optimizer = _build("prodigy", model)
    tell = SPECS["prodigy"].effective_lr
    assert tell is not None
    first = tell(optimizer)

    for step in range(50):
        _step(model, optimizer, step)

    assert first == pytest.approx(1e-6)
    assert tell(optimizer) > 100 * first
    assert tell(optimizer) == optimizer.param_groups[0]["d"]


def test_prodigy_refuses_groups_with_different_rates() -> None:
    spec = SPECS["prodigy"]
    groups = param_groups(_network(), 0.0)
    groups[0]["lr"] = 0.5

    with pytest.raises(ConfigError, match="same learning rate"):
        spec.build(groups, spec.options(), CPU)


def test_prodigy_grows_no_faster_than_allowed() -> None:
    model = _network()
    optimizer = _build("prodigy", model, growth_rate=1.02)

    for step in range(20):
        _step(model, optimizer, step)

    # The first update may jump once; the limit holds from there on.
    rates = [float(optimizer.param_groups[0]["d"])]
    for step in range(20, 40):
        _step(model, optimizer, step)
        rates.append(float(optimizer.param_groups[0]["d"]))
    growth = [after / before for before, after in zip(rates, rates[1:], strict=False)]
    assert 1.0 < max(growth) <= 1.02 + 1e-9


def test_an_estimate_that_runs_away_ruins_the_weights_without_an_error() -> None:
    weight = nn.Parameter(torch.ones(8))
    spec = SPECS["prodigy"]
    groups = [{"params": [weight], "weight_decay": 0.0}]
    optimizer = spec.build(groups, spec.options(), CPU)
    weight.grad = torch.ones(8)
    optimizer.step()
    optimizer.param_groups[0]["d"].fill_(1e30)

    optimizer.step()

    assert not weight.isfinite().all()


@pytest.mark.parametrize("weight_of_grad", [0.0, 1e-6, 0.3])
def test_prodigys_loop_on_a_cpu_computes_what_the_paper_says(
    monkeypatch: pytest.MonkeyPatch, weight_of_grad: float
) -> None:
    monkeypatch.setattr(prodigy_cpu, "PIECE", 1 << 14)
    numbers = prodigy_cpu.HostNumbers((0.9, 0.99, 0.995), 1e-3, 0.1, 0.2, weight_of_grad, 0.01)
    sizes = (7, 5000, 40_000)
    columns = [[torch.rand(size, dtype=torch.float64) for size in sizes] for _ in range(6)]
    w, g, m, v, s, first = (torch.cat(column) for column in copy.deepcopy(columns))

    products, sums = prodigy_cpu.step_on_host(columns, numbers)

    m, v = 0.9 * m + 0.1 * (0.1 * g), 0.99 * v + 0.01 * (0.1 * g) ** 2
    s = 0.995 * s + weight_of_grad * g
    moved = (1 - 0.2 * 0.01) * w - 0.2 * m / (v.sqrt() + 1e-3)
    found = [torch.cat(column) for column in (columns[0], *columns[2:5])]
    torch.testing.assert_close(found, [moved, m, v, s])
    torch.testing.assert_close(sum(products), torch.dot(g, first - w))
    torch.testing.assert_close(sum(sums), s.abs().sum())


def test_schedule_free_evaluates_an_average_and_returns_to_the_training_weights() -> None:
    model = _network()
    optimizer = _build("schedule_free_adamw", model)
    set_mode = SPECS["schedule_free_adamw"].set_mode
    assert set_mode is not None
    for step in range(30):
        _step(model, optimizer, step)
    training_weights = _weights(model)

    set_mode(optimizer, False)
    averaged = _weights(model)
    set_mode(optimizer, True)

    assert not torch.equal(averaged[0], training_weights[0])
    for value, kept in zip(_weights(model), training_weights, strict=True):
        torch.testing.assert_close(value, kept, rtol=1e-4, atol=1e-5)


def test_schedule_free_warms_up_by_itself() -> None:
    model = _network()
    optimizer = _build("schedule_free_adamw", model, lr=0.1, warmup_steps=4)

    rates = []
    for step in range(6):
        _step(model, optimizer, step)
        rates.append(optimizer.param_groups[0]["scheduled_lr"])

    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_groups_hold_every_trainable_parameter_once_though_tied_or_frozen() -> None:
    model = _network()
    head = nn.Linear(8, 5)
    head.weight = model.words.weight
    model.add_module("head", head)
    model.unused.requires_grad_(False)

    groups = param_groups(model, 0.1)

    held = [id(value) for group in groups for value in group["params"]]
    trainable = [id(value) for value in model.parameters() if value.requires_grad]
    assert sorted(held) == sorted(trainable)
    assert id(model.words.weight) not in {id(value) for value in groups[0]["params"]}


def test_gains_of_weight_norm_are_not_decayed() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3))

    decayed, others = param_groups(layer, 0.1)

    assert [tuple(value.shape) for value in decayed["params"]] == [(6, 4, 3)]
    assert [tuple(value.shape) for value in others["params"]] == [(6,), (6, 1, 1)]
