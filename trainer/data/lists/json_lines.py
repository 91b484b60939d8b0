"""Read a list of JSON lines: one object per row, with audio or with precomputed arrays.

A field that ends in `_path` and names an .npy file is an array, named without that ending:
`codes_path` gives `codes`. Rows with arrays need no audio. In lists of pairs, the fields of the
clip to speak have the prefix `target_`; `target_text` is read as `text`, and so on.
"""

import json
import math
import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.core.errors import DataError
from trainer.core.types import Problem
from trainer.data.lists.audio_paths import AudioFinder, Missing
from trainer.data.lists.dialect import to_language_code
from trainer.data.lists.encoding import read_text
from trainer.data.lists.listing import (
    DEFAULT_SPEAKER,
    Entry,
    Listing,
    Progress,
    Source,
    no_progress,
    report_rows,
    shown,
    text_fault,
)

ENDINGS = (".jsonl", ".ndjson", ".json")
ARRAY_ENDING = ".npy"

_AUDIO = ("audio_path", "audio", "audio_file", "audio_filepath", "wav", "file", "path")
_LINE_END = re.compile(r"\r\n|\r")
# The length of `text_ids` is in the field `text_ids_len` or `text_len`.
_SHORT = {"text_ids": "text", "codes": "code"}
# The code rate of IndexTTS-2; only used for rows that give no duration.
_CODES_A_SECOND = 50


class ArrayError(DataError):
    """An array cannot be used; `kind`, `reason` and `remedy` go to the ledger."""

    def __init__(self, kind: str, reason: str, remedy: str) -> None:
        self.kind, self.reason, self.remedy = kind, reason, remedy
        super().__init__(f"{reason} {remedy}")


@dataclass(frozen=True)
class _Place:
    """Where rows come from, and the defaults for what they do not name."""

    name: str
    split: str
    language: str
    finder: AudioFinder


def read_json_lines(
    path: Path, name: str, split: str, language: str, progress: Progress = no_progress
) -> Listing:
    """Read a list of JSON lines; `name` is what messages call the list.

    Raises:
        DataError: the file is not text, or none of its lines is a JSON object.
    """
    text, encoding = read_text(path, language)
    # Not splitlines: JSON strings may contain separators such as U+2028.
    every = _LINE_END.sub("\n", text).removesuffix("\n").split("\n")
    lines = [(number, line) for number, line in enumerate(every, 1) if line.strip()]
    blank = len(every) - len(lines)
    listing = Listing(
        Source(name, str(path), "JSON lines", encoding, "", False, len(lines), blank, (), split)
    )
    place = _Place(name, split, language, AudioFinder(path.parent))
    for done, (number, line) in enumerate(lines, 1):
        report_rows(progress, done, len(lines))
        result = _read_row(number, line, place)
        (listing.entries if isinstance(result, Entry) else listing.problems).append(result)  # type: ignore[arg-type]
    if all(problem.kind == "broken_row" for problem in listing.problems) and not listing.entries:
        raise DataError(
            f"{path} contains no JSON lines. Expected an object such as "
            '{"audio": "clips/1.wav", "text": "..."} on each line.'
        )
    return listing


def array_duration_s(entry: Entry) -> float:
    """Check the headers of a row's arrays and return its duration (s), if needed from its codes.

    Raises:
        ArrayError: an array is damaged or not numeric, or the row has neither duration nor codes.
    """
    shapes = {name: _shape_of(name, path) for name, path in entry.arrays.items()}
    if entry.duration_s is not None:
        return entry.duration_s
    for name in ("target_codes", "codes"):
        if name in shapes and shapes[name]:
            return entry.lengths.get(name, shapes[name][0]) / _CODES_A_SECOND
    raise ArrayError(
        "no_length",
        "The row has neither a duration nor codes.",
        'Add "duration" in seconds, or the codes.',
    )


def _read_row(number: int, line: str, place: _Place) -> Entry | Problem:
    try:
        row = json.loads(line)
    # RecursionError: a line with thousands of nested brackets.
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        remedy = 'Write one object on each line, such as {"audio": "1.wav", "text": "..."}.'
        reason = "The line is not a JSON object."
        return Problem(place.name, number, "", shown(line[:100]), "broken_row", reason, remedy)
    text = " ".join(unicodedata.normalize("NFC", _string(row, "text")).split())
    speaker = unicodedata.normalize("NFC", _string(row, "speaker", "speaker_name").strip())
    audio_file = _string(row, *_AUDIO)
    arrays, missing = _find_arrays(row, place.finder)
    about = (place.name, number, shown(_first(arrays, audio_file)), shown(text))
    if missing is not None:
        return Problem(*about, missing.kind, missing.reason, missing.remedy)
    needs_text = not any(name.endswith("text_ids") for name in arrays)
    # "-0" stands for the text of a row that has `text_ids` instead, and passes the check.
    fault = text_fault(text or ("" if needs_text else "-0"), speaker)
    if fault is not None:
        return Problem(*about, *fault)
    found = place.finder.find(audio_file) if audio_file or not arrays else ""
    if isinstance(found, Missing):
        if not arrays:
            return Problem(*about, found.kind, found.reason, found.remedy)
        # The arrays suffice to train on, so a missing recording does not cost the row.
        found = ""
    return Entry(
        found, _first(arrays, audio_file), text, speaker or DEFAULT_SPEAKER,
        to_language_code(_string(row, "language", "lang"), place.language), place.name, number,
        place.split, arrays, _lengths(row, arrays), _number(row, "duration"),
    )  # fmt: skip


def _find_arrays(
    row: dict[str, object], finder: AudioFinder
) -> tuple[dict[str, str], Missing | None]:
    """Return the paths of a row's arrays by name, or the first one that is missing."""
    arrays = {}
    for field, value in row.items():
        if not field.endswith("_path") or not isinstance(value, str):
            continue
        if not value.lower().endswith(ARRAY_ENDING):
            continue
        found = _find_array(value, finder)
        if isinstance(found, Missing):
            remedy = "Copy the arrays next to the list, or correct the path."
            return {}, Missing("missing_array", found.reason, remedy)
        arrays[field.removesuffix("_path")] = found
    return arrays, None


def _find_array(value: str, finder: AudioFinder) -> str | Missing:
    """Find a file by its path, or by the end of a path from another machine."""
    first = finder.find(value)
    parts = value.replace("\\", "/").split("/")
    for start in range(1, len(parts)):
        if not isinstance(first, Missing) or first.kind == "refused_path":
            break
        later = finder.find("/".join(parts[start:]))
        if not isinstance(later, Missing):
            return later
    return first


def _lengths(row: dict[str, object], arrays: dict[str, str]) -> dict[str, int]:
    lengths = {}
    for name in arrays:
        short = name
        for long, brief in _SHORT.items():
            short = short.replace(long, brief)
        for field in (f"{name}_len", f"{short}_len"):
            length = row.get(field)
            if isinstance(length, int) and length > 0:
                lengths[name] = length
    return lengths


def _shape_of(name: str, path: str) -> tuple[int, ...]:
    file = os.path.basename(path)
    try:
        # Mapped, so that only the header is read; pickles are refused, because they can run code.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArrayError(
            "unreadable_array",
            f"{file} ({name}) cannot be read: {str(error)[:100]}.",
            "Compute it again.",
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf" or array.size == 0:
        raise ArrayError(
            "unreadable_array", f"{file} ({name}) is empty or not numeric.", "Compute it again."
        )
    return array.shape


def _string(row: dict[str, object], *names: str) -> str:
    for name in names:
        for field in (f"target_{name}", name):
            value = row.get(field)
            if isinstance(value, str) and value:
                return value
    return ""


def _number(row: dict[str, object], name: str) -> float | None:
    for field in (f"target_{name}", name):
        value = row.get(field)
        if isinstance(value, int | float) and math.isfinite(value) and value > 0:
            return float(value)
    return None


def _first(arrays: dict[str, str], audio_file: str) -> str:
    """Return the file name that identifies a row: its audio, else its codes."""
    codes = arrays.get("target_codes") or arrays.get("codes") or next(iter(arrays.values()), "")
    return audio_file or os.path.basename(codes)
