"""Report the characters that a model does not know and how many minutes of clips contain them."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.core.specs import ModelFamily
from trainer.core.types import Clip

# Both limits keep the answer small enough for the page to show; chosen by hand. A corpus in a
# script that the model does not know at all can have thousands of unknown characters.
_EXAMPLES = 8
_LETTERS = 200


def describe_charset_coverage(
    family: ModelFamily, base: Path | None, options: object, clips: Sequence[Clip]
) -> dict[str, Any]:
    """Return unknown characters with the clips and minutes that contain them, and example texts.

    JSON values: `letters` (most minutes first), `examples` (texts with unknown characters first),
    `minutes` (of clips with any unknown character). Empty if the family has no `reads`.
    """
    if family.preview_texts is None or not clips:
        return {}
    readings = family.preview_texts(base, options, [(clip.text, clip.language) for clip in clips])
    count: Counter[str] = Counter()
    minutes: defaultdict[str, float] = defaultdict(float)
    touched = 0.0
    for clip, reading in zip(clips, readings, strict=True):
        touched += clip.duration_s / 60 if reading.unknown else 0.0
        # Count a clip once per character, however often it contains it.
        for letter in dict.fromkeys(reading.unknown):
            count[letter] += 1
            minutes[letter] += clip.duration_s / 60
    costliest = sorted(minutes.items(), key=lambda pair: -pair[1])
    pairs = sorted(zip(clips, readings, strict=True), key=lambda pair: not pair[1].unknown)
    return {
        "minutes": touched,
        "letters": [
            {"letter": letter, "name": _name(letter), "clips": count[letter], "minutes": cost}
            for letter, cost in costliest[:_LETTERS]
        ],
        "examples": [
            {
                "line": clip.line,
                "text": clip.text,
                "cleaned": reading.cleaned,
                "pieces": list(reading.pieces),
                "unknown": list(reading.unknown),
            }
            for clip, reading in pairs[:_EXAMPLES]
        ],
    }


def _name(letter: str) -> str:
    # A "letter" may be a base character with combining marks; three names identify it.
    names = (unicodedata.name(part, f"U+{ord(part):04X}") for part in letter[:3])
    return ", ".join(name.lower() for name in names)
