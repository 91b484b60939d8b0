"""Draw histograms of predicted and true codes, as a preview that needs no vocoder."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from trainer.core.specs import Picture
from trainer.core.types import Batch
from trainer.models.indextts2.network.gpt import UnifiedVoice
from trainer.models.indextts2.training.losses import predict

_SHOWN = 48
"""Number of the most frequent codes that get bars; one more pair shows all others."""

# Pixels, chosen by hand: the bars stand on _BASE, with two rows of labels below.
_WIDTH, _HEIGHT, _LEFT, _BASE = 720, 210, 44, 168
_SPOKEN, _SAID = "#7a8794", "#d9822b"


@torch.no_grad()
def illustrate(model: nn.Module, batches: Iterable[Batch]) -> Picture:
    """Count the true codes of clips and the most likely predictions, and draw both.

    Each code is predicted from the true codes before it (teacher forcing).
    """
    assert isinstance(model, UnifiedVoice)
    stop = model.sizes.stop_audio
    spoken, said, hits = np.zeros(stop, np.int64), np.zeros(stop, np.int64), 0
    for batch in batches:
        targets = batch["audio_targets"].cpu().numpy()
        likeliest = predict(model, batch)[1].argmax(dim=-1).cpu().numpy()
        # The last target of a clip is the stop token, not a code. A model may predict "stop"
        # anywhere, so the count of predictions needs one bin more.
        is_code = targets < stop
        hits += int((likeliest == targets)[is_code].sum())
        spoken += np.bincount(targets[is_code], minlength=stop)[:stop]
        said += np.bincount(likeliest[is_code], minlength=stop + 1)[:stop]
    return draw_codes(spoken, said, hits)


def draw_codes(spoken: np.ndarray, said: np.ndarray, hits: int) -> Picture:
    """Draw two histograms over codes, (num_codes,) int64 each; `hits` predictions are correct."""
    total = max(1, int(spoken.sum()))
    shares = np.stack([spoken, said]) / total
    overlap = float(shares.min(axis=0).sum())
    words = (
        f"{100 * hits / total:.1f} % of {total} codes are correct (top-1); different codes: "
        f"{int((said > 0).sum())} predicted, {int((spoken > 0).sum())} in the clips; "
        f"the histograms overlap by {100 * overlap:.0f} %."
    )
    # Stable, so that ties do not change places from one preview to the next.
    order = np.argsort(-spoken, kind="stable")
    shown = max(1, min(_SHOWN, int((spoken > 0).sum())))
    others = shares[:, order[shown:]].sum(axis=1, keepdims=True)
    return Picture(_draw_bars(np.concatenate([shares[:, order[:shown]], others], axis=1)), words)


def _draw_bars(shares: np.ndarray) -> str:
    """Return an SVG of pairs of bars; shares: (2, n), of which the last pair is all other codes."""
    # All other codes together would dwarf every bar, so their pair is cut off and labelled.
    top = float(shares[:, :-1].max()) or 1.0
    step = (_WIDTH - _LEFT - 8) / shares.shape[1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#ffffff"/>',
        _text(_LEFT, 16, "in clips", _SPOKEN),
        _text(_LEFT + 60, 16, "predicted", _SAID),
        _text(4, 34, f"{100 * top:.2g} %", "#333333"),
        _text(4, _BASE, "0 %", "#333333"),
        _text(
            _LEFT, _HEIGHT - 8, f"the {shares.shape[1] - 1} most common codes, by rank", "#333333"
        ),
        _text(_WIDTH - 6, _HEIGHT - 8, "all others", "#333333", anchor="end"),
        f'<path d="M{_LEFT} {_BASE}H{_WIDTH - 8}" stroke="#333333"/>',
    ]
    for place, pair in enumerate(shares.T):
        for side, (share, colour) in enumerate(zip(pair, (_SPOKEN, _SAID), strict=True)):
            height = (_BASE - 30) * min(1.0, float(share) / top)
            x = _LEFT + step * (place + 0.08 + 0.42 * side)
            parts.append(
                f'<rect x="{x:.1f}" y="{_BASE - height:.1f}" width="{0.42 * step:.1f}" '
                f'height="{height:.1f}" fill="{colour}"/>'
            )
    spoken, said = (f"{100 * share:.0f} %" for share in shares[:, -1])
    parts.append(_text(_WIDTH - 6, _BASE + 14, f"{spoken} / {said}", "#333333", anchor="end"))
    return "".join(parts) + "</svg>\n"


def _text(x: float, y: float, words: str, colour: str, *, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}">{words}</text>'
