"""Weights in bf16: half the memory of weights and gradients; updates happen in fp32.

With a master (Micikevicius et al. 2018) the optimizer keeps every weight in fp32 as well, so that
training is that of mixed precision, but without rounding all weights anew in every step. Without
one, updates are rounded stochastically (Zamirai et al. 2020, arXiv 2010.06192).
"""

from dataclasses import dataclass

import torch

from trainer.core.device import Device
from trainer.core.errors import ConfigError
from trainer.core.options import option
from trainer.core.specs import Optimization, State
from trainer.core.train_state import Precision, Probe, Setup
from trainer.optimizations._core.half_weights import HalfWeights

MASTER, STOCHASTIC = "master", "stochastic"


@dataclass(frozen=True)
class Options:
    """The options of weights in bf16."""

    updates: str = option(
        MASTER,
        "Updates",
        "master: the optimizer keeps fp32 weights beside, which are what is saved; as exact as "
        "mixed precision. stochastic: no such copy; updates are rounded up or down by chance, "
        "which is right on average and takes 4 bytes a weight less.",
        choices=(MASTER, STOCHASTIC),
    )


def unavailable(device: Device) -> str | None:
    """Return why a device does not compute in bf16, or None."""
    if device.has_bf16:
        return None
    return (
        f"{device.name} does not compute bf16 (compute capability 8.0 is the least). Use mixed "
        "precision with fp16 instead."
    )


def apply(setup: Setup, options: Options) -> None:
    """Round the weights of linear and convolution layers, and let the optimizer hold doubles.

    Raises:
        ConfigError: another choice does not go with it, or no weight can be rounded.
    """
    _refuse_combinations(setup, options)
    is_stochastic = options.updates == STOCHASTIC
    half = HalfWeights(
        setup.model,
        is_stochastic=is_stochastic,
        in_parts=setup.optimizer_spec.in_parts,
        # Sums in bf16 would lose what late micro-steps add; whoever wants no master wants memory.
        exact_sums=not is_stochastic and setup.config.training.accumulate > 1,
        seed=setup.config.training.seed,
    )
    assert setup.build_optimizer is not None
    plainly = setup.build_optimizer
    setup.precision = Precision(torch.bfloat16)
    setup.in_full, setup.widen, setup.masters = half.in_full, half.widen, half.masters
    setup.build_optimizer = lambda model: half.build(plainly, model)
    setup.optimizer = setup.build_optimizer(setup.model)


def _refuse_combinations(setup: Setup, options: Options) -> None:
    mixed = setup.config.optimizations.get("mixed_precision", {})
    if mixed.get("mode") == "fp16":
        raise ConfigError(
            "Weights in bf16 do not go with mixed precision in fp16. Choose bf16 or auto there, or "
            "untick one of the two."
        )
    if options.updates == STOCHASTIC and setup.optimizer_spec.set_mode is not None:
        raise ConfigError(
            f"{setup.optimizer_spec.label} works its average out from the weights, which "
            "stochastic rounding would blur. Choose updates with a master, or another optimizer."
        )


def state(setup: Setup, probe: Probe) -> State:
    """Tell how many weights are in bf16, and what the optimizer updates in their place."""
    weights = list(setup.model.parameters())
    total = sum(value.numel() for value in weights)
    halves = {id(value): value for value in weights if value.dtype == torch.bfloat16}
    count = sum(value.numel() for value in halves.values())
    if count == 0:
        return State(False, "all weights are in fp32")
    held = [value for group in setup.optimizer.param_groups for value in group["params"]]
    num_plain = sum(id(value) in halves for value in held)
    if num_plain:
        return State(False, f"the optimizer updates {num_plain} weights in bf16 as they are")
    beside = sum(value.nbytes for value in setup.masters.values())
    how = (
        f"fp32 masters of {beside / 2**20:,.1f} MiB beside them"
        if beside
        else "no masters, updates rounded by chance"
    )
    return State(True, f"{count:,} of {total:,} weights in bf16, {how}")


OPTIMIZATION = Optimization(
    name="bf16_weights",
    label="Weights in bf16",
    help="Keeps the weights of the layers in 16 bits: with mixed precision they are rounded anew "
    "in every step and their copy takes memory. Gradients take half as well. What is saved stays "
    "in fp32; weights that are not trained are rounded once. Turns mixed precision on.",
    stage="precision",
    exact=False,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    state=state,
)
