"""Option fields that several optimizers share, so that their labels and help texts match."""

from typing import Any

from trainer.core.options import option


def lr_field(hint: str, *, max: float = 1.0) -> Any:  # noqa: A002 - as in `option`
    """Declare the learning rate; empty means the model family's default, else the optimizer's."""
    # Chosen by hand: below 1e-9 an update vanishes in float32 next to any usual weight.
    return option(None, "Learning rate", hint, min=1e-9, max=max)


def beta1_field(default: float = 0.9) -> Any:
    """Declare beta 1, the decay rate of the first moment."""
    text = "Decay rate of the moving average of gradients."
    return option(default, "Beta 1", text, min=0.0, max=0.9999, advanced=True)


def beta2_field(default: float = 0.999) -> Any:
    """Declare beta 2, the decay rate of the second moment."""
    # At small batch sizes a longer half-life helps (arXiv 2507.07101: keep it fixed in tokens).
    text = "Decay rate of the moving average of squared gradients; raise it for small batches."
    return option(default, "Beta 2", text, min=0.0, max=0.999999, advanced=True)


def eps_field(default: float = 1e-8) -> Any:
    """Declare epsilon, the term that avoids a division by zero."""
    text = "Added to the denominator to avoid dividing by zero."
    return option(default, "Epsilon", text, min=1e-15, max=1e-2, advanced=True)


def weight_decay_field(default: float = 0.01, *, hint: str = "") -> Any:
    """Declare the weight decay of matrices; `_groups.param_groups` exempts everything else."""
    text = "Pulls weights towards zero; biases, norms and embeddings are exempt." + hint
    return option(default, "Weight decay", text, min=0.0, max=1.0, advanced=True)


def cautious_field() -> Any:
    """Declare the option that selects the cautious variant."""
    text = (
        "Skip the entries of an update whose sign is opposite to the current gradient and scale "
        "up the others (arXiv 2411.16085). Makes steps slower."
    )
    return option(False, "Cautious", text, advanced=True)
