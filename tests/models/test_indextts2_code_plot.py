"""The picture of IndexTTS-2's codes: what is said beside what is spoken."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from trainer.models.indextts2.inference.code_plot import draw_codes

SPOKEN = np.zeros(200, np.int64)
SPOKEN[:100] = np.arange(100, 0, -1)


def heights(svg: str, colour: str) -> list[float]:
    """Return the heights of the bars of a colour, from left to right."""
    found = [e.attrib for e in ElementTree.fromstring(svg).iter() if e.get("fill") == colour]
    return [float(attributes["height"]) for attributes in found if "height" in attributes]


def test_a_model_that_says_what_is_spoken_overlaps_wholly() -> None:
    picture = draw_codes(SPOKEN, SPOKEN.copy(), int(SPOKEN.sum()))

    spoken, said = heights(picture.svg, "#7a8794"), heights(picture.svg, "#d9822b")
    assert "100.0 % of 5050 codes" in picture.words
    assert "overlap by 100 %" in picture.words
    assert spoken == said
    assert spoken[:-1] == sorted(spoken[:-1], reverse=True)


def test_a_model_that_says_one_code_everywhere_is_seen() -> None:
    said = np.zeros(200, np.int64)
    said[3] = 5050

    picture = draw_codes(SPOKEN, said, 97)

    assert "different codes: 1 predicted, 100 in the clips" in picture.words
    assert "overlap by 2 %" in picture.words
    bars = heights(picture.svg, "#d9822b")
    assert [place for place, height in enumerate(bars) if height > 0] == [3]


@pytest.mark.parametrize("spoken", [SPOKEN, np.zeros(200, np.int64)], ids=["clips", "nothing"])
def test_bars_stay_within_the_picture(spoken: np.ndarray) -> None:
    picture = draw_codes(spoken, SPOKEN[::-1].copy(), 0)

    numbers = [float(number) for number in re.findall(r'y="([\d.]+)"', picture.svg)]
    assert min(numbers) >= 0
    assert max(numbers) <= 210
