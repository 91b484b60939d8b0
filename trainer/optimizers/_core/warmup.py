"""The ramp of AdEMAMix (arXiv 2409.03137, section 3): its slow mean grows in over many steps."""

import math


def ramped(
    alpha: float, beta1: float, beta3: float, step: int, ramp_steps: int
) -> tuple[float, float]:
    """Return alpha and beta 3 of a step: the half-life of the slow mean grows linearly."""
    if step >= ramp_steps:
        return alpha, beta3
    share = step / ramp_steps
    # The paper's code adds 1e-8 to beta so that the logarithm exists.
    first, last = (math.log(0.5) / math.log(beta + 1e-8) - 1 for beta in (beta1, beta3))
    half_life = (1 - share) * first + share * last
    return share * alpha, 0.5 ** (1 / (half_life + 1))
