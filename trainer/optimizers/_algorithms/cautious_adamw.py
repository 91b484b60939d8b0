"""Cautious AdamW, a variant that torch's fused AdamW kernel does not offer."""

from typing import Any

import torch
from torch import Tensor

from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.elementwise import adam_denominators, apply_updates
from trainer.optimizers._core.param_table import ParamTable, TableOptimizer


class CautiousAdamW(TableOptimizer):
    """Cautious AdamW (Liang et al. 2024, arXiv 2411.16085, algorithm 1); keys as in torch."""

    def fresh_state(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """Return zero-initialised moments for a weight of any shape."""
        return {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}

    def update_table(self, table: ParamTable) -> None:
        """Update the weights and moments of a table once."""
        group, (beta1, beta2) = table.group, table.group["betas"]
        means, squares = table.column("exp_avg"), table.column("exp_avg_sq")
        table.gate.lerp_(means, table.grads, 1 - beta1)
        table.gate.mean_squares_(squares, table.grads, beta2)
        denominators = adam_denominators(squares, group["eps"], beta2, table.step)
        # The cautious mask needs the whole update of a tensor (its share of kept entries is a mean
        # over the tensor), so this does not work in cache-sized pieces.
        updates = list(lists.div(means, denominators))
        lists.div_(updates, 1 - beta1**table.step)
        apply_updates(table, updates, lr=group["lr"], cautious_of=table.grads)
