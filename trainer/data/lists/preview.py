"""Preview a list: its first rows as they are parsed, and the role of each column."""

from dataclasses import dataclass
from pathlib import Path

from trainer.data.lists.dialect import find_dialect, is_header
from trainer.data.lists.encoding import is_damaged, read_text
from trainer.data.lists.json_lines import ENDINGS
from trainer.data.lists.listing import shown
from trainer.data.lists.rows import split_rows

_LONGEST = 120  # Characters of a cell that are shown.


@dataclass(frozen=True)
class ListPreview:
    """The first rows of a list.

    headings: one per column; "column N" if the list has no header. roles: role (audio, text,
    speaker, language) -> column, counted from 0.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    roles: dict[str, int]


def preview_list(
    path: Path, language: str = "", columns: str = "", *, count: int = 5
) -> ListPreview | None:
    """Return the first rows of a table; None for lists without columns, such as JSON lines.

    Raises:
        DataError: the file cannot be read, or `columns` names a column that does not exist.
    """
    if path.suffix.lower() in ENDINGS:
        return None
    text, _ = read_text(path, language)
    table = split_rows(text, is_header)
    if table is None:
        return None
    dialect = find_dialect(table, path.name, columns)
    body = table.rows[1:] if dialect.has_header else table.rows
    headings = tuple(shown(name) for name in dialect.columns)
    headings += tuple(f"column {number}" for number in range(len(headings) + 1, table.width + 1))
    roles = {
        role: column
        for role in ("audio", "text", "speaker", "language")
        if (column := getattr(dialect, role)) is not None
    }
    # Surplus cells of a broken row would have no heading.
    rows = [tuple(_short(cell) for cell in row.cells[: table.width]) for row in body[:count]]
    return ListPreview(headings, tuple(rows), roles)


def _short(cell: str) -> str:
    cell = shown("?" if is_damaged(cell) else cell)
    return cell if len(cell) <= _LONGEST else cell[: _LONGEST - 3] + "..."
