"""8-bit AdamW (Dettmers et al. 2022, arXiv 2110.02861), which stores each moment in one byte."""

import importlib
from dataclasses import dataclass

import torch

from trainer.core.errors import MissingDependency
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._core.param_groups import Group
from trainer.optimizers._core.shared_options import (
    beta1_field,
    beta2_field,
    eps_field,
    lr_field,
    weight_decay_field,
)


@dataclass(frozen=True)
class Options:
    """The options of 8-bit AdamW."""

    lr: float | None = lr_field("Empty: the model family's default, the same as AdamW's.")
    beta1: float = beta1_field()
    beta2: float = beta2_field()
    eps: float = eps_field()
    weight_decay: float = weight_decay_field()


def build(
    param_groups: list[Group], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return AdamW with block-quantised state; embeddings, biases and norms keep 32 bits.

    Raises:
        MissingDependency: bitsandbytes is not installed.
    """
    try:
        package = importlib.import_module("bitsandbytes")
    except ImportError:
        raise MissingDependency("bitsandbytes", "The optimizer 8-bit AdamW") from None

    class AdamW8bit(package.optim.AdamW8bit):
        """8-bit AdamW for the matrices, 32-bit AdamW for the rest."""

        def get_config(self, gindex: int, pindex: int, group: Group) -> Group:
            """Return the storage options of a weight's state."""
            config = super().get_config(gindex, pindex, group)
            # Rows of an embedding get gradients rarely, and rounding would keep their moments at
            # zero. The paper keeps embeddings in 32 bits too.
            return config if group.get("are_matrices", True) else config | {"optim_bits": 32}

    return AdamW8bit(
        param_groups,
        lr=options.lr or SPEC.default_lr,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
    )


SPEC = OptimizerSpec(
    name="adamw_8bit",
    label="AdamW 8-bit",
    summary="AdamW with a quarter of the memory; needs the package bitsandbytes.",
    paper="https://arxiv.org/abs/2110.02861",
    options=Options,
    build=build,
    # Two bytes per entry, two float32 scales per block of 256 entries (8 / 256), and two lookup
    # tables of 256 float32 entries per weight, here of 256 x 256 (2048 / 65536).
    state_bytes=2.0625,
    default_lr=1e-4,  # AdamW's
    rate_follows="adamw",
    warning="Saves little when activations take most of the memory.",
    in_parts=True,
)
