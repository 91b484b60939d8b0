"""Split text into rows of cells, with detection of the separator and tolerant quoting.

With `|` and tab, quotes are ordinary characters. With `;` and `,` they follow RFC 4180, including
quoted line ends; an unclosed quote affects only its own row.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Of equally good ones the first wins: sentences contain commas but hardly ever a `|`.
SEPARATORS = ("|", "\t", ";", ",")
AUDIO_EXTENSIONS = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif")
FOREIGN_EXTENSIONS = (".m4a", ".aac", ".wma", ".mp4", ".webm", ".amr", ".mkv", ".mov", ".ape")
# Chosen by hand: no sentence has that many characters, or lines inside its quotes.
MAX_CELL = 1_000_000
_MAX_JOINED_LINES = 50
_SAMPLE = 1000  # Rows to choose the separator by.


@dataclass(frozen=True, slots=True)
class ListRow:
    """One record and the line it starts on; `fault` is the reason if it cannot be parsed."""

    line: int
    cells: tuple[str, ...]
    fault: str = ""


@dataclass(frozen=True)
class ListRows:
    """All records of a file, including the header."""

    separator: str
    width: int
    rows: list[ListRow]
    blank_lines: int


def split_rows(text: str, is_header: Callable[[Sequence[str]], bool]) -> ListRows | None:
    """Split text into rows by the best separator; return None if there is only one column."""
    lines = re.split(r"\r\n|\n|\r", text)
    if lines and not lines[-1]:
        lines.pop()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        return None
    separator = _choose_separator(numbered[:_SAMPLE], is_header)
    if separator is None:
        return None
    records = _records(numbered, separator)
    if is_header(records[0].cells):
        width = len(records[0].cells)
    else:
        width = Counter(len(record.cells) for record in records).most_common(1)[0][0]
    rows = [_repair(record, separator, width) for record in records]
    return ListRows(separator, width, rows, len(lines) - len(numbered))


def looks_like_audio(cell: str) -> bool:
    """Return whether a cell ends with the extension of an audio file."""
    return cell.strip().lower().endswith(AUDIO_EXTENSIONS + FOREIGN_EXTENSIONS)


def _choose_separator(
    numbered: list[tuple[int, str]], is_header: Callable[[Sequence[str]], bool]
) -> str | None:
    scores = {}
    for separator in SEPARATORS:
        records = _records(numbered, separator)
        width, count = Counter(len(record.cells) for record in records).most_common(1)[0]
        if is_header(records[0].cells):
            return separator
        if width < 2:
            continue
        named = sum(any(map(looks_like_audio, record.cells)) for record in records)
        scores[separator] = (count + named) / len(records)
    return max(scores, key=lambda separator: scores[separator]) if scores else None


def _records(numbered: list[tuple[int, str]], separator: str) -> list[ListRow]:
    if separator in "|\t":
        return [ListRow(number, _literal_cells(line, separator)) for number, line in numbered]
    records = []
    index = 0
    while index < len(numbered):
        number, line = numbered[index]
        cells = quoted_cells(line, separator) if '"' in line else line.split(separator)
        used = 1
        if cells is None:
            cells, used = _join_lines(numbered, index, separator)
        if cells is None:
            records.append(ListRow(number, tuple(line.split(separator)), "a quote is not closed"))
            used = 1
        else:
            records.append(ListRow(number, tuple(cells)))
        index += used
    return records


def _literal_cells(line: str, separator: str) -> tuple[str, ...]:
    cells = line.split(separator)
    if '""' in line:
        # A CSV writer doubled the quotes; people do not type them like this.
        cells = [_undoubled(cell) for cell in cells]
    return tuple(cells)


def _undoubled(cell: str) -> str:
    """Unquote a cell whose inner quotes are doubled; return other cells unchanged."""
    if len(cell) < 4 or not (cell.startswith('"') and cell.endswith('"')):
        return cell
    inner = cell[1:-1]
    # No regular expression here: backtracking over doubled quotes takes hours on a long cell.
    is_doubled = '""' in inner and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if is_doubled else cell


def _join_lines(
    numbered: list[tuple[int, str]], start: int, separator: str
) -> tuple[list[str] | None, int]:
    joined = numbered[start][1]
    for used in range(2, min(_MAX_JOINED_LINES, len(numbered) - start) + 1):
        number, line = numbered[start + used - 1]
        if looks_like_audio(line.split(separator)[0]):
            # This line starts a new row, so the quote above was not closed.
            return None, 1
        # Blank lines are missing from `numbered`, but inside quotes they are part of the cell.
        gap = number - numbered[start + used - 2][0]
        joined += "\n" * gap + line
        if '"' in line:
            cells = quoted_cells(joined, separator)
            if cells is not None:
                return cells, used
    return None, 1


def quoted_cells(line: str, separator: str) -> list[str] | None:
    """Split a line by RFC 4180; return None if a quote is not closed.

    If text follows a closing quote, the cell is taken literally up to the separator.
    """
    cells: list[str] = []
    position = 0
    while True:
        if line.startswith('"', position):
            cell, position = _quoted_cell(line, position, separator)
            if cell is None:
                return None
        else:
            end = line.find(separator, position)
            end = len(line) if end < 0 else end
            cell, position = line[position:end], end
        cells.append(cell)
        if position >= len(line):
            return cells
        position += 1


def _quoted_cell(line: str, start: int, separator: str) -> tuple[str | None, int]:
    position = start + 1
    while True:
        quote = line.find('"', position)
        if quote < 0:
            return None, start
        if line.startswith('""', quote):
            position = quote + 2
            continue
        break
    if quote + 1 == len(line) or line.startswith(separator, quote + 1):
        return line[start + 1 : quote].replace('""', '"'), quote + 1
    # Literal text cannot span lines, so the quote was not closed.
    if "\n" in line[start:quote]:
        return None, start
    end = line.find(separator, quote)
    end = len(line) if end < 0 else end
    return line[start:end], end


def _repair(record: ListRow, separator: str, width: int) -> ListRow:
    if record.fault:
        return record
    if max(map(len, record.cells)) > MAX_CELL:
        short = tuple(cell[:100] for cell in record.cells)
        return ListRow(record.line, short, f"a cell is longer than {MAX_CELL} characters")
    if separator in "|\t" and len(record.cells) > width:
        line = separator.join(record.cells)
        # Some writers quote cells that contain the separator in these formats, too.
        cells = quoted_cells(line, separator) if f'{separator}"' in line else None
        if cells is not None and len(cells) == width:
            return ListRow(record.line, tuple(cells))
    return record
