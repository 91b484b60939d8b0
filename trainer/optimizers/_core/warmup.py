"""The warm-up of AdEMAMix's slow average (arXiv 2409.03137, section 3)."""

import math


def warmed_up(
    alpha: float, beta1: float, beta3: float, step: int, ramp_steps: int
) -> tuple[float, float]:
    """Return alpha and beta 3 for a step: alpha and the slow average's half-life grow linearly.

    Interpolating beta itself would stay near its start for most of the warm-up, so the paper
    interpolates the half-life.
    """
    if step >= ramp_steps:
        return alpha, beta3
    share = step / ramp_steps
    # The authors' code adds 1e-8 too, so that the logarithm exists for beta = 0.
    first, last = (math.log(0.5) / math.log(beta + 1e-8) - 1 for beta in (beta1, beta3))
    half_life = (1 - share) * first + share * last
    return share * alpha, 0.5 ** (1 / (half_life + 1))
