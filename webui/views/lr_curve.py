"""Draw the planned learning rate of a run as a small SVG, before the run starts."""

from collections.abc import Sequence

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
    floor = _TOP + height
    return (
        f'<figure class="lr-curve"><figcaption>Learning rate over the run</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="Learning rate: at most {highest:.3g}, over {last_step} steps">'
        f'<line class="axis" x1="{_LEFT}" y1="{floor}" x2="{_WIDTH - 10}" y2="{floor}"/>'
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_WIDTH - 10}" y2="{_TOP}"/>'
        f'<text x="{_LEFT - 8}" y="{_TOP + 4}" text-anchor="end">{highest:.3g}</text>'
        f'<text x="{_LEFT - 8}" y="{floor + 4}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">step 1</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 6}" text-anchor="end">step {last_step}</text>'
        f'<polyline points="{places}"/></svg></figure>'
    )
