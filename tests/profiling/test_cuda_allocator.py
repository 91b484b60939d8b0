"""Whole steps as on a GPU, without one: tensors without contents stand for those on the card.

What would raise, wait or be refused there fails here: operators that mix the host's tensors with
the card's, numbers that the host asks for, copies that it waits for, lists that a fused kernel of
CUDA does not take. What the kernels compute, only a card can show.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.optimizers.test_found_inf import VARIANTS
from tests.parity import optimizer_problem as problem
from trainer.config.resolve import resolve
from trainer.core.device import describe_cpu
from trainer.core.options import build_options
from trainer.core.registry import discover
from trainer.core.run_config import Choice, RunConfig, TrainingConfig
from trainer.core.specs import OptimizerSpec
from trainer.core.train_state import TrainState, World
from trainer.optimizers import kron
from trainer.optimizers._core import param_table
from trainer.profiling.synthetic_batches import (
    largest_batches,
    longest_clips,
    make_synthetic,
    make_synthetic_clips,
    synthetic_spec_of,
)
from trainer.training.assemble import build_train_state
from trainer.training.loop import train_step

CARD = torch.device("meta")
SPECS = discover("trainer.optimizers", OptimizerSpec)
FAMILIES = [
    ("xtts", "tiny", {}),
    ("fastspeech2", "small", {"size": "small"}),
    ("fastspeech2", "standard", {"size": "standard"}),
    ("indextts2", "tiny", {"conditioning": "trained"}),
]
each_family = pytest.mark.parametrize(("family", "size", "options"), FAMILIES)
_READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2")
_COLUMNS = {"_fused_sgd_": 2, "_fused_adamw_": 4}


class Card(TorchDispatchMode):
    """Fails where a card would raise or keep the host waiting."""

    def __enter__(self) -> Any:
        """Watch what makes tensors of the host's numbers too, which is no operator."""
        made = torch.tensor

        def make(data: Any, **how: Any) -> Tensor:
            assert torch.device(how.get("device") or "cpu") != CARD, "numbers of the host wait"
            return made(data, **how)

        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(torch, "tensor", make)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """Watch no longer."""
        self._patch.undo()
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at an operator and run it; copies to the host and fused kernels bring nothing."""
        kwargs = kwargs or {}
        name = func.name().split(".")[0].removeprefix("aten::")
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        on_card = [value for value in tensors if value.device == CARD]
        if name in ("copy_", "_to_copy") and _crosses(name, args, kwargs):
            waits = not (kwargs.get("non_blocking") or args[2:3] == (True,))
            assert not waits, f"{func} keeps the host waiting"
            # What comes to the host has no contents to bring.
            return args[0] if name == "copy_" and args[0].device != CARD else func(*args, **kwargs)
        if not on_card:
            return func(*args, **kwargs)
        assert name not in _READS, f"{func} reads a number from the card"
        # A plain number may come from the host.
        alien = [value.shape for value in tensors if value.device != CARD and value.dim()]
        assert not alien, f"{func} mixes tensors of the host {alien} with the card's"
        if name in _COLUMNS:
            _check_lists(args, kwargs, _COLUMNS[name])
            return None
        return func(*args, **kwargs)


def _crosses(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    target = args[0].device if name == "copy_" else kwargs.get("device") or args[0].device
    source = args[1] if name == "copy_" else args[0]
    return (torch.device(target) == CARD) != (source.device == CARD)


def _check_lists(args: tuple[Any, ...], kwargs: dict[str, Any], columns: int) -> None:
    """Hold lists to what CUDA's kernels demand: alike row by row, counts and verdicts in fp32."""
    for row in zip(*args[:columns], strict=True):
        facts = {(value.dtype, value.shape, value.stride(), value.device) for value in row}
        assert len(facts) == 1, f"a fused kernel takes no row of {facts}"
    scalars = [kwargs["found_inf"], *(args[5] if columns == 4 else ())]
    assert {(value.dtype, value.device) for value in scalars} == {(torch.float32, CARD)}


@pytest.fixture(autouse=True)
def _card_is_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stand-in go the ways of a GPU."""
    monkeypatch.setattr(param_table, "GATED_DEVICES", {"meta"})
    # No generator makes random numbers without contents.
    monkeypatch.setattr(kron, "draw_noise", lambda like, seed: torch.randn_like(like))
    monkeypatch.setattr(
        sys.modules["torch.optim.optimizer"],
        "_get_fused_kernels_supported_devices",
        lambda: ["meta"],
    )


def _setup(family: str, size: str, options: dict[str, Any]) -> TrainState:
    config = _config(family, options)
    entries, clips = resolve(config), longest_clips(make_synthetic_clips([1.0, 0.8]), 2)
    dataset = make_synthetic(config, entries, clips, size)
    with CARD:
        model = synthetic_spec_of(entries).network(entries.family_options, dataset.corpus.facts)
    state = build_train_state(
        Path("."), config, entries, dataset, model=model, machine=describe_cpu(), world=World()
    )
    state.device = CARD
    return state


def _config(family: str, options: dict[str, Any]) -> RunConfig:
    training = TrainingConfig(
        batch_size=2, accumulate=2, device="cpu", steps=9, clip_norm=1.0, ema_decay=0.9
    )
    return RunConfig(family=Choice(family, options), training=training)


@each_family
def test_a_step_keeps_to_the_card(family: str, size: str, options: dict[str, Any]) -> None:
    state = _setup(family, size, options)

    with Card():
        metrics = train_step(state, 1)
    state.train_batches.close()

    assert {value.device for value in metrics.values()} == {CARD}


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_optimizer_keeps_to_the_card(variant: str) -> None:
    name = variant.split()[0]
    groups = problem.make_groups()
    for group in groups:
        group["params"] = [torch.nn.Parameter(weight.to(CARD)) for weight in group["params"]]
    options = build_options(SPECS[name].options, VARIANTS[variant], name)
    optimizer: Any = SPECS[name].build(groups, options, torch.device("cuda"))
    weights = [weight for group in groups for weight in group["params"]]

    with Card():
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.grad_scale, optimizer.found_inf = None, torch.zeros((), device=CARD)
            optimizer.step()

    states = [value for weight in weights for value in optimizer.state[weight].values()]
    assert {value.device for value in states if isinstance(value, Tensor)} <= {CARD}


def test_what_keeps_the_host_waiting_is_seen() -> None:
    on_card, on_host = torch.ones(2, device=CARD), torch.ones(2)

    with Card():
        assert on_host.to(CARD, non_blocking=True).device == CARD
        for wait in (
            lambda: on_host.to(CARD),
            lambda: on_card.sum().item(),
            lambda: on_card + on_host,
            lambda: torch.tensor([1.0], device=CARD),
        ):
            with pytest.raises(AssertionError):
                wait()


@each_family
def test_cudas_own_list_of_roundings_fits_the_networks(
    family: str,
    size: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    config = _config(family, options)
    entries, clips = resolve(config), longest_clips(make_synthetic_clips([1.0, 0.8]), 2)
    dataset = make_synthetic(config, entries, clips, size)
    batch = largest_batches(config, entries, dataset)[0]
    products: set[torch.dtype] = set()

    with FakeTensorMode() as fake:
        with torch.device("cuda"):
            model = synthetic_spec_of(entries).network(entries.family_options, dataset.corpus.facts)
        tensors = {name: fake.from_tensor(value).cuda() for name, value in batch.tensors.items()}
        handles = [
            module.register_forward_hook(lambda module, given, found: products.add(found.dtype))
            for module in model.modules()
            if isinstance(module, torch.nn.Linear)
        ]
        with torch.autocast("cuda", dtype=torch.float16):
            losses = entries.family.losses(model, replace(batch, tensors=tensors))
            checks = entries.family.validate(model.eval(), replace(batch, tensors=tensors))

    assert handles and products == {torch.float16}
    assert {value.dtype for value in losses.values()} == {torch.float32}
    assert {value.device.type for found in checks for value in found.values()} == {"cuda"}
