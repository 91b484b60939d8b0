"""Weights in bf16: half the memory for weights and gradients, with updates in fp32.

With master weights (Micikevicius et al. 2018) the optimizer also keeps every weight in fp32, so
training is the same as with mixed precision but without casting all weights at every step. Without
them, updates are rounded stochastically (Zamirai et al. 2020, arXiv 2010.06192).
"""

from dataclasses import dataclass

import torch

from trainer.core.device import MIB, Device
from trainer.core.errors import ConfigError
from trainer.core.options import option
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import Precision, Probe, TrainState
from trainer.optimizations._core.half_weights import HalfWeights
from trainer.optimizers._core.build import rebuild_optimizer

MASTER, STOCHASTIC = "master", "stochastic"


@dataclass(frozen=True)
class Options:
    """The options of weights in bf16."""

    updates: str = option(
        MASTER,
        "Updates",
        "master: the optimizer also keeps fp32 weights, which are the ones saved; as exact as "
        "mixed precision. stochastic: no fp32 copy; updates are stochastically rounded, which is "
        "correct on average and saves 4 bytes per weight.",
        choices=(MASTER, STOCHASTIC),
    )


def unavailable(device: Device) -> str | None:
    """Return why a device cannot compute in bf16, or None."""
    if device.has_bf16:
        return None
    return (
        f"{device.name} does not support bf16, which needs compute capability 8.0. Use mixed "
        "precision with fp16 instead."
    )


def apply(state: TrainState, options: Options) -> None:
    """Round the weights of linear and convolution layers; give the optimizer fp32 copies.

    Raises:
        ConfigError: another option is incompatible.
    """
    _refuse_combinations(state, options)
    is_stochastic = options.updates == STOCHASTIC
    half = HalfWeights(
        state.model,
        is_stochastic=is_stochastic,
        in_parts=state.optimizer_spec.in_parts,
        # Sums in bf16 would lose what later micro-steps add. Without masters, memory comes first.
        exact_sums=not is_stochastic and state.config.training.accumulate > 1,
        seed=state.config.training.seed,
    )
    # With autocast, because activations that norms return in fp32 must meet bf16 weights.
    state.precision = Precision(torch.bfloat16)
    state.half_weights = half
    # The optimizer is rebuilt, because it must hold the fp32 copies from the start.
    state.optimizer = rebuild_optimizer(state)


def _refuse_combinations(state: TrainState, options: Options) -> None:
    mixed = state.config.optimizations.get("mixed_precision", {})
    if mixed.get("mode") == "fp16":
        raise ConfigError(
            "Weights in bf16 cannot be combined with mixed precision in fp16. Choose bf16 or auto "
            "there, or turn off one of the two."
        )
    # Schedule-Free computes x from y and z, so the errors of rounding y to bf16 would enter x.
    if options.updates == STOCHASTIC and state.optimizer_spec.set_mode is not None:
        raise ConfigError(
            f"{state.optimizer_spec.label} computes its average from the weights, which "
            "stochastic rounding would blur. Set Updates to master, or choose another optimizer."
        )


def status(state: TrainState, probe: Probe) -> OptimizationStatus:
    """Report how many weights are in bf16, and what the optimizer updates instead."""
    weights = list(state.model.parameters())
    total = sum(value.numel() for value in weights)
    halves = {id(value): value for value in weights if value.dtype == torch.bfloat16}
    count = sum(value.numel() for value in halves.values())
    if count == 0:
        return OptimizationStatus(False, "all weights are in fp32")
    held = [value for group in state.optimizer.param_groups for value in group["params"]]
    # Any bf16 weight in the optimizer would lose small updates, which is what this must prevent.
    num_plain = sum(id(value) in halves for value in held)
    if num_plain:
        return OptimizationStatus(
            False, f"the optimizer updates {num_plain} weights directly in bf16"
        )
    beside = sum(value.nbytes for value in state.master_weights.values())
    how = (
        f"fp32 masters of {beside / MIB:,.1f} MiB"
        if beside
        else "no masters, stochastically rounded updates"
    )
    return OptimizationStatus(True, f"{count:,} of {total:,} weights in bf16, {how}")


OPTIMIZATION = Optimization(
    name="bf16_weights",
    label="Weights in bf16",
    help="Stores layer weights in 16 bits. Mixed precision instead casts them at every step, and "
    "the copy takes memory. Gradients take half the memory, too. Saved weights stay in fp32; "
    "frozen weights are rounded once. Turns on mixed precision.",
    stage="precision",
    exact=False,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    status=status,
)
