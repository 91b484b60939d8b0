"""Schedule-Free AdamW (Defazio et al. 2024, arXiv 2405.15682, algorithm 1) over tables.

During training the weights hold y, the point where gradients are computed, and the state holds the
fast point z; the average x is computed from the two when it is needed. State keys and arithmetic
match the package `schedulefree`.
"""

import torch
from torch import Tensor

from trainer.core.errors import ConfigError
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.elementwise import adam_denominators
from trainer.optimizers._core.param_groups import Group
from trainer.optimizers._core.param_table import ParamTable, TableOptimizer


class ScheduleFree(TableOptimizer):
    """Base of Schedule-Free methods: convert the weights between y and x."""

    def __init__(self, param_groups: list[Group], defaults: Group) -> None:
        start = {"k": 0, "train_mode": True, "weight_sum": 0.0}
        super().__init__(param_groups, start | defaults)

    def train(self) -> None:
        """Set the weights to y, the training point."""
        self._turn(True)

    def eval(self) -> None:
        """Set the weights to the average x, the result to validate, save and use."""
        self._turn(False)

    def check_mode(self) -> None:
        """Check that the weights hold y.

        Raises:
            ConfigError: the weights hold the average x.
        """
        if not self.param_groups[0]["train_mode"]:
            raise ConfigError(
                "The weights hold the average x, which is not a training point. Call "
                "set_mode(optimizer, True) before the next step."
            )

    @torch.no_grad()
    def _turn(self, training: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] != training:
                beta1 = group["betas"][0]
                # y = (1 - beta1) * z + beta1 * x; the second share inverts that to get x from y.
                share = 1 - beta1 if training else 1 - 1 / beta1
                for weight in group["params"]:
                    # A weight that never had a gradient has not moved: its x, y and z are equal.
                    if "z" in self.state[weight]:
                        weight.lerp_(self.state[weight]["z"], share)
                group["train_mode"] = training


class ScheduleFreeAdamW(ScheduleFree):
    """Schedule-Free AdamW with built-in warm-up."""

    def __init__(self, param_groups: list[Group], defaults: Group) -> None:
        # The defaults of the package schedulefree: steps weigh by the squared learning rate alone.
        start = {"r": 0.0, "weight_lr_power": 2.0, "lr_max": -1.0, "scheduled_lr": 0.0}
        super().__init__(param_groups, start | defaults)

    def fresh_state(self, weight: Tensor, group: Group) -> dict[str, Tensor]:
        """Return the fast point and a zero second moment for a weight of any shape."""
        return {"z": weight.clone(), "exp_avg_sq": torch.zeros_like(weight)}

    def update(self, tables: list[ParamTable]) -> None:
        """Update the averaging weights of every group, then its tensors."""
        self.check_mode()
        for group in self.param_groups:
            _advance(group)
        super().update(tables)
        for group in self.param_groups:
            group["k"] += 1

    def update_table(self, table: ParamTable) -> None:
        """Update the weights and states of a table once."""
        group, lr = table.group, table.group["scheduled_lr"]
        beta1, beta2 = group["betas"]
        share = group["share_of_z"]
        # Moving z by -lr * u moves y by this much per u (algorithm 1 with x eliminated).
        push = lr * (beta1 * (1 - share) - 1)
        for weights, grads, fast, squares in table.pieces("z", "exp_avg_sq"):
            table.gate.mean_squares_(squares, grads, beta2)
            step = group["k"] + 1
            updates = list(lists.div(grads, adam_denominators(squares, group["eps"], beta2, step)))
            if group["weight_decay"]:
                lists.add_(updates, weights, alpha=group["weight_decay"])
            # y first: its interpolation needs z from before this step.
            table.gate.lerp_(weights, fast, share)
            table.gate.move_(weights, updates, -push)
            table.gate.move_(fast, updates, lr)


def _advance(group: Group) -> None:
    """Compute the rate of a step and the share of z in the average, all on the host."""
    warmup = group["warmup_steps"]
    lr = group["lr"] * min(1.0, (group["k"] + 1) / warmup if warmup else 1.0)
    group["scheduled_lr"] = lr
    group["lr_max"] = max(lr, group["lr_max"])
    # Steps count by the square of the largest rate so far (weight_lr_power 2), so that warm-up
    # steps hardly enter the average.
    weight = (group["k"] + 1) ** group["r"] * group["lr_max"] ** group["weight_lr_power"]
    group["weight_sum"] += weight
    group["share_of_z"] = weight / group["weight_sum"] if group["weight_sum"] else 0.0


def set_mode(optimizer: torch.optim.Optimizer, training: bool) -> None:
    """Set the weights to y for training, or to the average x for everything else."""
    # By name, because the package's optimizer has the same methods as `ScheduleFree`.
    getattr(optimizer, "train" if training else "eval")()
