"""Clean Unicode text minimally, and convert it to phonemes with espeak-ng."""

import re
import shutil
import unicodedata
from collections.abc import Sequence

from trainer.core.child_process import run_child
from trainer.core.errors import DataError, MissingDependency

_ALIKE = str.maketrans(
    {
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\u300c\u300d\u300e\u300f", '"'),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u02bc\u2032\u00b4`", "'"),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        "\u2026": "...",
        # Full-width forms of ASCII.
        **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},
    }
)
_INVISIBLE = re.compile("[\u00ad\u200b\u200d-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_NON_JOINER = "\u200c"
_MARKS = {
    "\u060c": ",", "\u061b": ";", "\u061f": "?", "\u06d4": ".",  # Arabic script
    "\u1361": " ", "\u1362": ".", "\u1363": ",", "\u1364": ";", "\u1365": ":", "\u1366": ":",
    "\u1367": "?", "\u1368": ".",  # Ethiopic script
    "\u3002": ".", "\u3001": ",", "\u0964": ".",  # ideographic, Devanagari
}  # fmt: skip
# A mark between digits or letters ("3.5", "e.g") is part of the word.
_PAUSE = re.compile("([.,;:!?]+(?=[\\s\"')\\]\u3040-\u9fff]|$)|[!?]+)")
_VOICES = {"en": "en-us", "zh": "cmn", "zh-cn": "cmn", "zh-tw": "cmn", "no": "nb", "fil": "tl"}
_SWITCH = re.compile(r"\([a-z]{2,3}(?:-[a-z0-9]+)*\)")
_FENCE = "77"
_BATCH = 400  # Pieces per espeak-ng process; starting one for each piece takes far longer.


def clean_text(text: str, language: str = "") -> str:
    """Normalize text: NFC, spaces, quotes, dashes and full-width letters.

    Invisible characters are removed, except the zero-width non-joiner in Persian, where it
    separates parts of words.
    """
    text = unicodedata.normalize("NFC", text).translate(_ALIKE)
    text = _INVISIBLE.sub("", text)
    if not language.lower().startswith("fa"):
        text = text.replace(_NON_JOINER, "")
    return " ".join(text.split())


def text_to_phonemes(texts: Sequence[str], language: str) -> list[str]:
    """Convert texts to IPA with espeak-ng; . , ; : ! ? are kept, other punctuation is removed.

    Args:
        language: BCP-47 code; `en` means en-US.

    Raises:
        MissingDependency: espeak-ng is not installed.
        DataError: espeak-ng does not support the language.
    """
    pieces = [_split_at_pauses(clean_text(text, language)) for text in texts]
    spoken = [piece for parts in pieces for piece in parts if _is_spoken(piece)]
    unique = list(dict.fromkeys(spoken))
    sounds: dict[str, str] = {}
    for start in range(0, len(unique), _BATCH):
        batch = unique[start : start + _BATCH]
        sounds.update(zip(batch, _speak(batch, language), strict=True))
    return [_join(parts, sounds) for parts in pieces]


def _split_at_pauses(text: str) -> list[str]:
    for mark, ascii_mark in _MARKS.items():
        text = text.replace(mark, f"{ascii_mark} ")
    return [piece.strip() for piece in _PAUSE.split(text) if piece.strip()]


def _is_spoken(piece: str) -> bool:
    return any(letter.isalnum() for letter in piece)


def _join(parts: Sequence[str], sounds: dict[str, str]) -> str:
    text = ""
    for part in parts:
        if _is_spoken(part):
            text += " " + sounds[part]
        elif part[0] in ".,;:!?":
            text += part
    return " ".join(text.split())


def _speak(pieces: Sequence[str], language: str) -> list[str]:
    """Return the phonemes of each piece.

    espeak-ng may print several lines or none for a piece, so a known number follows each piece as
    a separator. If the number of separators is wrong, the batch is split in half and retried.
    """
    text = "".join(f"{piece}\n\n{_FENCE}\n\n" for piece in pieces)
    lines = [_SWITCH.sub("", line).strip() for line in _run_espeak(text, language).splitlines()]
    fence = lines[-1] if lines else ""
    if fence and lines.count(fence) == len(pieces):
        answers: list[list[str]] = [[]]
        for line in lines:
            if line == fence:
                answers.append([])
            else:
                answers[-1].append(line)
        return [" ".join(answer).strip() for answer in answers[:-1]]
    if len(pieces) == 1:
        whole = _SWITCH.sub("", _run_espeak(pieces[0], language))
        return [" ".join(whole.split())]
    middle = len(pieces) // 2
    return _speak(pieces[:middle], language) + _speak(pieces[middle:], language)


def _run_espeak(text: str, language: str) -> str:
    binary = shutil.which("espeak-ng")
    if binary is None:
        raise MissingDependency("espeak-ng", "Phonemes", "apt-get install espeak-ng")
    code = language.lower()
    for voice in dict.fromkeys([_VOICES.get(code, code), code.split("-")[0]]):
        command = [binary, "-q", "--ipa", "-v", voice, "--stdin"]
        result = run_child(command, text=text.encode(), timeout_s=300)
        if result.returncode == 0:
            return result.stdout.decode()
    raise DataError(
        f"espeak-ng does not support '{language}'. Use characters instead of phonemes, or one of "
        "the languages listed by 'espeak-ng --voices'."
    )
