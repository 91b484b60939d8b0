"""Fields that the options of several optimizers share, so that they are worded once."""

from typing import Any

from trainer.core.options import option


def lr_field(hint: str, *, max: float = 1.0) -> Any:  # noqa: A002 - as in `option`
    """Declare the learning rate; empty means what suits the family, else the optimizer."""
    return option(None, "Learning rate", hint, min=1e-9, max=max)


def beta1_field(default: float = 0.9) -> Any:
    """Declare the memory of the gradient's mean."""
    text = "Memory of the gradient's mean."
    return option(default, "Beta 1", text, min=0.0, max=0.9999, folded=True)


def beta2_field(default: float = 0.999) -> Any:
    """Declare the memory of the gradient's size."""
    text = "Memory of the gradient's size; raise it for small batches."
    return option(default, "Beta 2", text, min=0.0, max=0.999999, folded=True)


def eps_field(default: float = 1e-8) -> Any:
    """Declare the number that keeps the division finite."""
    text = "Keeps the division finite."
    return option(default, "Epsilon", text, min=1e-15, max=1e-2, folded=True)


def weight_decay_field(default: float = 0.01, *, hint: str = "") -> Any:
    """Declare the decay of matrices; `_groups.param_groups` leaves the others alone."""
    text = "Pulls weights towards zero; biases, norms and embeddings are left alone." + hint
    return option(default, "Weight decay", text, min=0.0, max=1.0, folded=True)


def cautious_field() -> Any:
    """Declare the switch of the cautious variants."""
    text = (
        "Leave out the entries of an update that point against the gradient of the step and "
        "enlarge the others (arXiv 2411.16085). Costs some time."
    )
    return option(False, "Cautious", text, folded=True)
