"""Build the optimizer of a run for the weights that it trains."""

import torch
from torch import nn

from trainer.core.options import Options
from trainer.core.specs import OptimizerSpec
from trainer.core.train_state import TrainState
from trainer.optimizers._core.param_groups import param_groups


def build_optimizer(
    spec: OptimizerSpec, options: Options, model: nn.Module, device: torch.device
) -> torch.optim.Optimizer:
    """Build an optimizer for the trainable parameters of a model."""
    groups = param_groups(model, getattr(options, "weight_decay", 0.0))
    return spec.build(groups, options, device)


def rebuild_optimizer(state: TrainState) -> torch.optim.Optimizer:
    """Build the optimizer of a run again, because other weights train now or are loaded."""

    def plainly(model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(state.optimizer_spec, state.optimizer_options, model, state.device)

    half = state.half_weights
    return plainly(state.model) if half is None else half.build(plainly, state.model)
