"""Option fields that several optimizers share, and how options become a group's defaults."""

from trainer.core.options import describe, option, retired_option
from trainer.optimizers._core.param_groups import Group


def lr_field(hint: str, *, max: float = 1.0) -> float | None:  # noqa: A002 - as in `option`
    """Declare the learning rate; empty means the model family's default, else the optimizer's."""
    # Chosen by hand: below 1e-9 an update vanishes in float32 next to any usual weight.
    return option(None, "Learning rate", hint, min=1e-9, max=max)


def beta1_field(default: float = 0.9) -> float:
    """Declare beta 1, the decay rate of the first moment."""
    text = "Decay rate of the moving average of gradients."
    return option(default, "Beta 1", text, min=0.0, max=0.9999, advanced=True)


def beta2_field(default: float = 0.999) -> float:
    """Declare beta 2, the decay rate of the second moment."""
    # At small batch sizes a longer half-life helps (arXiv 2507.07101: keep it fixed in tokens).
    text = "Decay rate of the moving average of squared gradients; raise it for small batches."
    return option(default, "Beta 2", text, min=0.0, max=0.999999, advanced=True)


def eps_field(default: float = 1e-8) -> float:
    """Declare epsilon, the term that avoids a division by zero."""
    text = "Added to the denominator to avoid dividing by zero."
    return option(default, "Epsilon", text, min=1e-15, max=1e-2, advanced=True)


def weight_decay_field(default: float = 0.01, *, hint: str = "") -> float:
    """Declare the weight decay of matrices; `param_groups` exempts everything else."""
    text = "Pulls weights towards zero; biases, norms and embeddings are exempt." + hint
    return option(default, "Weight decay", text, min=0.0, max=1.0, advanced=True)


def cautious_field() -> bool:
    """Declare the option that selects the cautious variant."""
    text = (
        "Skip the entries of an update whose sign is opposite to the current gradient and scale "
        "up the others (arXiv 2411.16085). Makes steps slower."
    )
    return option(False, "Cautious", text, advanced=True)


def implementation_field(text: str) -> str:
    """Declare the choice between our implementation and the class of the authors' package."""
    choices = ("timbre", "package")
    return option("timbre", "Implementation", text, choices=choices, advanced=True)


def compiled_field() -> bool:
    """Declare a retired option: until version 0.1 some rules could be compiled with g++."""
    return retired_option(False, "Compiled", "optimizers are no longer compiled.")


def group_defaults(options: object, default_lr: float) -> Group:
    """Return the options as defaults of parameter groups, the betas as a tuple as in torch."""
    infos = [info for info in describe(type(options)) if not info.retired]
    values = {info.name: getattr(options, info.name) for info in infos}
    betas = [values.pop(name) for name in ("beta1", "beta2", "beta3") if name in values]
    return values | {"lr": values["lr"] or default_lr, "betas": tuple(betas)}
