"""Draw the planned learning rate of a run as a small SVG, before the run starts."""

from collections.abc import Sequence

from webui.views.markup import render

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 150, 64, 24, 10


def draw_lr_curve(points: Sequence[tuple[int, float]]) -> str:
    """Return an SVG of (step, learning rate) pairs, at least one of them."""
    last_step = max(step for step, _ in points)
    highest = max(rate for _, rate in points) or 1.0
    width, height = _WIDTH - _LEFT - 10, _HEIGHT - _BOTTOM - _TOP
    places = " ".join(
        f"{_LEFT + width * step / last_step:.1f},{_TOP + height * (1 - rate / highest):.1f}"
        for step, rate in points
    )
    return render(
        "lr_curve", width=_WIDTH, height=_HEIGHT, left=_LEFT, right=_WIDTH - 10, top=_TOP,
        floor=_TOP + height, highest=f"{highest:.3g}", last_step=last_step, places=places,
    )  # fmt: skip
