"""Save a list with edited texts and excluded rows as a new file; the old file is not changed."""

import csv
import io
import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.core.errors import DataError
from trainer.data.lists.audio_paths import AudioFinder, Missing
from trainer.data.lists.dialect import find_dialect, is_header
from trainer.data.lists.encoding import is_damaged, read_text
from trainer.data.lists.json_lines import ENDINGS
from trainer.data.lists.listing import Source, read_listing
from trainer.data.lists.rows import ListRow, split_rows

_COLUMNS = ("audio_file", "text", "speaker_name", "language")


@dataclass(frozen=True)
class Rewritten:
    """A rewritten list: its path, its number of rows, and lines that could not be copied."""

    path: Path
    num_rows: int
    lost_lines: tuple[int, ...]


def rewrite_list(
    source: Source,
    *,
    texts: Mapping[int, str],
    left_out: Sequence[int],
    folder: Path | None = None,
    language: str = "",
    columns: str = "",
) -> Rewritten:
    """Write a list with new texts (by line) and without some lines, in the Coqui layout.

    The new file goes to `folder` or next to the old list, with audio paths that work from there,
    and is read back to check it. `language` and `columns` are those that the list is read with.

    Raises:
        DataError: the list is not a table, the folder is not writable, or a text does not survive
            the round trip.
    """
    path = Path(source.path)
    if path.suffix.lower() in ENDINGS:
        raise DataError(f"{path.name} contains JSON lines; only tables can be edited here.")
    target = (folder or path.parent).absolute()
    rows, lost = _read_rows(path, columns, language)
    gone = set(left_out)
    kept = {line: row for line, row in rows.items() if line not in gone}
    finder = AudioFinder(path.parent)
    # In the same folder, relative paths keep working, and the dataset can still be moved.
    is_near = target == path.parent.absolute()
    cells = [
        _cells(row, texts.get(line), None if is_near else finder) for line, row in kept.items()
    ]
    if not cells:
        raise DataError("No row would be left. Exclude fewer rows.")
    out = _write_new(target, path.stem, as_table(cells))
    changed = [" ".join(text.split()) for line, text in texts.items() if line in kept]
    _check_reading(out, len(cells), changed, language)
    return Rewritten(out, len(cells), tuple(lost))


def _read_rows(
    path: Path, columns: str, language: str
) -> tuple[dict[int, tuple[str, ...]], list[int]]:
    """Return the cells (audio, text, speaker, language) by line, and the unparsable lines."""
    text, _ = read_text(path, language)
    table = split_rows(text, is_header)
    if table is None:
        raise DataError(f"{path.name} has only one column, so there is nothing to edit.")
    dialect = find_dialect(table, path.name, columns)
    body = table.rows[1:] if dialect.has_header else table.rows
    rows: dict[int, tuple[str, ...]] = {}
    lost = []
    for row in body:
        if row.fault or len(row.cells) < dialect.least_width or is_damaged("".join(row.cells)):
            # A copy of such a row would differ from the original, so its line is reported.
            lost.append(row.line)
            continue
        spoken = _cell(row, dialect.text).strip() or _cell(row, dialect.fallback_text)
        roles = (_cell(row, dialect.audio), spoken, _cell(row, dialect.speaker))
        rows[row.line] = (*roles, _cell(row, dialect.language))
    return rows, lost


def _cell(row: ListRow, column: int | None) -> str:
    return row.cells[column] if column is not None and column < len(row.cells) else ""


def _cells(row: tuple[str, ...], text: str | None, finder: AudioFinder | None) -> tuple[str, ...]:
    audio, old, speaker, language = (" ".join(cell.split()) for cell in row)
    if finder is not None:
        found = finder.find(audio)
        if isinstance(found, Missing) and speaker:
            found = finder.find(f"{speaker}/{audio}")
        audio = audio if isinstance(found, Missing) else found
    return audio, old if text is None else " ".join(text.split()), speaker, language


def as_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table separated by `|` as in Coqui, or a quoted CSV if a cell contains `|`."""
    # No wider than needed, because other trainers expect two or three columns.
    width = 4 if any(row[3] for row in rows) else 3 if any(row[2] for row in rows) else 2
    table = [_COLUMNS[:width], *(row[:width] for row in rows)]
    # Doubled quotes too: readers of the `|` layout take them for the quoting of CSV.
    if not any("|" in cell or '""' in cell for row in rows for cell in row):
        return "".join("|".join(row) + "\n" for row in table)
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(table)
    return buffer.getvalue()


def _write_new(folder: Path, stem: str, text: str) -> Path:
    """Write a file under a free name; opening with "x" avoids a race with other processes."""
    # An edited list that is edited again is numbered, not given the suffix twice.
    stem = stem.split("-edited")[0]
    number = 1
    try:
        while True:
            path = folder / f"{stem}-edited{'' if number == 1 else f'-{number}'}.csv"
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    # Unlike features, what a person typed cannot be computed again.
                    os.fsync(file.fileno())
                return path
            except FileExistsError:
                number += 1
    except OSError as error:
        raise DataError(
            f"{folder} is not writable ({error.strerror}). Choose another folder for the new CSV."
        ) from None


def _check_reading(path: Path, num_rows: int, texts: Sequence[str], language: str) -> None:
    """Check that a new list has this many rows and these texts; remove it if not."""
    listing = read_listing(path, path.name, "", language)
    read = {row.text for row in (*listing.entries, *listing.problems)}
    # The reader composes letters, so the comparison must too.
    missing = [text for text in texts if unicodedata.normalize("NFC", text) not in read]
    if not missing and len(listing.entries) + len(listing.problems) == num_rows:
        return
    # Otherwise a later run could train on texts that nobody has typed.
    path.unlink()
    what = f"The text '{missing[0][:80]}'" if missing else "A row"
    raise DataError(f"{what} cannot be saved unchanged. Remove its control characters.")
