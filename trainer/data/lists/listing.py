"""Read one list file: each row becomes an Entry with clean cells, or a Problem with the reason."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainer.core.errors import DataError
from trainer.core.types import Problem
from trainer.data.lists.audio_paths import AudioFinder, Missing
from trainer.data.lists.dialect import Dialect, find_dialect, is_header, to_language_code
from trainer.data.lists.encoding import is_damaged, read_text
from trainer.data.lists.rows import ListRow, split_rows

DEFAULT_SPEAKER = "speaker"
Progress = Callable[[str, int, int], None]
"""Called with the current phase, the amount done and the total."""
_LONG_LIST = 10_000
"""Rows above which progress is reported; shorter lists are read in about a second."""
# Tabs and line ends are allowed, since they become spaces. U+FFFD is what an earlier, faulty
# conversion leaves behind.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")


@dataclass(frozen=True)
class Source:
    """A list file and how it was parsed; clips and problems refer to it by `name`.

    `num_rows` does not count the header and blank lines.
    """

    name: str
    path: str
    dialect: str
    encoding: str
    separator: str
    has_header: bool
    num_rows: int
    num_blank_lines: int = 0
    columns: tuple[str, ...] = ()
    split: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row with valid cells; its files exist but have not been opened yet.

    Rows of JSON lines may have arrays (name -> path) and their lengths instead of audio.
    """

    audio_path: str
    audio_file: str
    text: str
    speaker: str
    language: str
    source: str
    line: int
    split: str
    arrays: dict[str, str] = field(default_factory=dict, hash=False)
    lengths: dict[str, int] = field(default_factory=dict, hash=False)
    duration_s: float | None = None

    @property
    def key(self) -> str:
        """The key that is equal for two rows of the same clip."""
        return "\n".join(self.arrays.values()) or self.audio_path

    def problem(
        self, kind: str, reason: str, remedy: str, duration_s: float | None = None
    ) -> Problem:
        """Return a Problem for this row."""
        return Problem(
            self.source, self.line, self.audio_file, self.text, kind, reason, remedy, duration_s
        )


@dataclass
class Listing:
    """All rows of one list file."""

    source: Source
    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def no_progress(phase: str, done: int, total: int) -> None:
    """Ignore progress."""


def report_rows(progress: Progress, done: int, total: int) -> None:
    """Report the number of rows read, about a hundred times for a long list."""
    if total >= _LONG_LIST and (done % (total // 100) == 0 or done == total):
        progress("Reading the list", done, total)


def read_listing(
    path: Path,
    name: str,
    split: str,
    language: str,
    columns: str = "",
    progress: Progress = no_progress,
) -> Listing:
    """Read a list file; `name` is what messages call it, `columns` is passed to `find_dialect`.

    Raises:
        DataError: the file cannot be parsed as rows with at least an audio file and a text.
    """
    text, encoding = read_text(path, language)
    # JSON contains commas, so it would pass for a table.
    if text.lstrip().startswith(("{", "[")):
        raise DataError(
            f"{path} is JSON. Save it as JSON lines (one object per line) with the "
            "extension .jsonl, or as CSV with the columns audio_file|text."
        )
    rows = split_rows(text, is_header)
    if rows is None:
        raise DataError(
            f"{path} has only one column. Expected an audio file and its text on each line, "
            "separated by |, a tab, a semicolon or a comma."
        )
    dialect = find_dialect(rows, path.name, columns)
    dialect = replace(dialect, columns=tuple(shown(column) for column in dialect.columns))
    body = rows.rows[1:] if dialect.has_header else rows.rows
    source = Source(
        name, str(path), dialect.name, encoding, rows.separator, dialect.has_header, len(body),
        rows.blank_lines, dialect.columns, split,
    )  # fmt: skip
    listing = Listing(source)
    finder = AudioFinder(path.parent)
    # Free each row as its entry is made, so that a million rows are not in memory twice.
    del text, rows
    # A list pops its last item at once, its first only by moving all others.
    body.reverse()
    while body:
        row = body.pop()
        result = _read_row(row, dialect, finder, (name, split, language))
        if isinstance(result, Entry):
            listing.entries.append(result)
        else:
            listing.problems.append(result)
        report_rows(progress, source.num_rows - len(body), source.num_rows)
    return listing


def _read_row(
    row: ListRow, dialect: Dialect, finder: AudioFinder, about: tuple[str, str, str]
) -> Entry | Problem:
    name, split, language = about
    audio_file = _cell(row, dialect.audio).strip()
    text = _text(row, dialect)
    labels = _cell(row, dialect.speaker) + _cell(row, dialect.language)
    fault = _shape_fault(row, dialect) or text_fault(text, audio_file + labels)
    if fault is not None:
        return Problem(name, row.line, shown(audio_file), shown(text), *fault)
    speaker = unicodedata.normalize("NFC", _cell(row, dialect.speaker).strip())
    found = finder.find(audio_file)
    if isinstance(found, Missing) and found.kind == "missing_audio" and speaker:
        # Some datasets with several speakers have a folder for each.
        below = finder.find(f"{speaker}/{audio_file}")
        found = found if isinstance(below, Missing) else below
    if isinstance(found, Missing):
        return Problem(name, row.line, audio_file, text, found.kind, found.reason, found.remedy)
    code = to_language_code(_cell(row, dialect.language), language)
    speaker = speaker or DEFAULT_SPEAKER
    return Entry(found, audio_file, text, speaker, code, name, row.line, split)


def _cell(row: ListRow, column: int | None) -> str:
    return row.cells[column] if column is not None and column < len(row.cells) else ""


def _text(row: ListRow, dialect: Dialect) -> str:
    text = _cell(row, dialect.text)
    if not text.strip():
        text = _cell(row, dialect.fallback_text)
    text = unicodedata.normalize("NFC", text)
    # split() takes some control characters for spaces and would hide the problem.
    return text if _CONTROL.search(text) else " ".join(text.split())


def _shape_fault(row: ListRow, dialect: Dialect) -> tuple[str, str, str] | None:
    if row.fault:
        remedy = "Close the quote, double quotes inside the text, or use | as separator."
        return "broken_row", f"The row cannot be parsed: {row.fault}.", remedy
    count = len(row.cells)
    # Spreadsheets append empty cells, which do no harm.
    surplus = any(cell.strip() for cell in row.cells[dialect.width :])
    if count < dialect.least_width or surplus:
        names = f" ({', '.join(dialect.columns)})" if dialect.columns else ""
        return (
            "wrong_columns",
            f"The row has {count} columns; expected {dialect.width}{names}.",
            "Add the missing cells, or remove the separator from the text.",
        )
    return None


def text_fault(text: str, others: str) -> tuple[str, str, str] | None:
    """Return kind, reason and remedy if a text cannot be spoken or `others` cannot be stored."""
    if is_damaged(text + others):
        remedy = "Save the list again as UTF-8."
        return "damaged_text", "The row contains bytes that are not UTF-8.", remedy
    control = _CONTROL.search(text + others)
    if control:
        code = f"U+{ord(control[0]):04X}"
        return "damaged_text", f"The row contains the control character {code}.", "Remove it."
    if not any(letter.isalnum() for letter in text):
        return "empty_text", "The row has no text to speak.", "Write what is said in the clip."
    return None


def shown(text: str) -> str:
    """Return text for display: without control characters, at most 1000 characters."""
    return _CONTROL.sub("\ufffd", text)[:1000]
