"""Build the ledger: clips and problems as one table, as totals, and as a CSV file."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.core.atomic_io import replacing
from trainer.core.types import Clip, Problem
from trainer.data.lists.listing import Source

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "source", "line", "audio_file", "text", "speaker", "language", "duration_s", "split", "status",
    "kind", "reason", "remedy", "clip_id",
)  # fmt: skip
_EDGES_S = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 60)  # finer where most clips are
# Spreadsheets run a cell that starts with one of these as a formula (CSV injection).
_FORMULA_STARTS = ("=", "+", "-", "@")
_ROW_ENDS = re.compile(r"[\t\r\n\v\f]")


def clips_table(
    clips: Sequence[Clip], problems: Sequence[Problem], sources: Sequence[Source]
) -> "pandas.DataFrame":
    """Return a table with one row per row of the lists, in their order."""
    import pandas

    folders = [os.path.dirname(os.path.abspath(source.path)) for source in sources]
    order = {source.name: rank for rank, source in enumerate(sources)}
    found = sorted([*clips, *problems], key=lambda row: (order[row.source], row.line))
    rows = [
        _clip_row(row, folders) if isinstance(row, Clip) else _problem_row(row) for row in found
    ]
    table = pandas.DataFrame(rows, columns=list(COLUMNS), dtype=object)
    table["line"] = table["line"].astype(int)
    table["duration_s"] = table["duration_s"].astype(float)
    return table


def summarize(clips: Sequence[Clip], problems: Sequence[Problem]) -> dict[str, Any]:
    """Return counts, durations, speakers, characters and lost minutes as plain JSON values."""
    durations = [clip.duration_s for clip in clips]
    lost: dict[str, dict[str, float]] = {}
    for problem in problems:
        entry = lost.setdefault(problem.kind, {"rows": 0, "minutes": 0.0})
        entry["rows"] += 1
        entry["minutes"] += (problem.duration_s or 0.0) / 60
    return {
        "num_rows": len(clips) + len(problems),
        "num_clips": len(clips),
        "num_train": sum(clip.split == "train" for clip in clips),
        "num_val": sum(clip.split == "val" for clip in clips),
        "num_problems": len(problems),
        "hours": sum(durations) / 3600,
        "minutes": sum(durations) / 60,
        "minutes_lost": sum(entry["minutes"] for entry in lost.values()),
        "lost": dict(sorted(lost.items())),
        "speakers": _groups(clips, "speaker"),
        "languages": _groups(clips, "language"),
        "sample_rates": dict(
            sorted(Counter(str(clip.sample_rate) for clip in clips if clip.sample_rate).items())
        ),
        "durations": {"edges_s": list(_EDGES_S), "counts": _histogram(durations)},
        "longest_s": max(durations, default=0.0),
        "shortest_s": min(durations, default=0.0),
        "characters": dict(Counter("".join(clip.text for clip in clips)).most_common()),
    }


def write_table(table: "pandas.DataFrame", path: Path) -> None:
    """Write a table as CSV (UTF-8 with BOM, for Excel) in which no cell is a formula."""
    safe = table.copy()
    for column in safe.columns:
        if safe[column].dtype == object:
            safe[column] = [escape_formula(cell) for cell in safe[column]]
    # In one step, because the page may read the ledger at any moment.
    with replacing(path) as partial:
        safe.to_csv(
            partial, index=False, encoding="utf-8-sig", errors="replace", lineterminator="\n"
        )


def mark_unusable(path: Path, reasons: Mapping[str, str]) -> None:
    """Mark rows of a written ledger as dropped, with the model family's reason, by clip id.

    Which clips a family cannot use is known only after their features were computed.
    """
    if not reasons or not path.is_file():
        return
    import pandas

    # Otherwise pandas takes a speaker called "NA" or "None" for a missing value.
    table = pandas.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    is_unusable = table["clip_id"].isin(list(reasons))
    table.loc[is_unusable, "status"] = "dropped"
    table.loc[is_unusable, "kind"] = "unusable_for_model"
    table.loc[is_unusable, "reason"] = table.loc[is_unusable, "clip_id"].map(reasons)
    write_table(table, path)


def escape_formula(cell: object) -> object:
    """Return a cell that is safe in a spreadsheet: text that looks like a formula gets a quote."""
    if not isinstance(cell, str):
        return cell
    # Some CSV readers take these characters for a row end, even inside a cell.
    cell = " ".join(cell.split()) if _ROW_ENDS.search(cell) else cell
    return "'" + cell if cell.startswith(_FORMULA_STARTS) else cell


def _clip_row(clip: Clip, folders: Sequence[str]) -> dict[str, object]:
    path = clip.audio_path or clip.arrays.get("target_codes") or clip.content_paths[0]
    for folder in folders:
        if path.startswith(folder.rstrip("/") + "/"):
            path = os.path.relpath(path, folder)
            break
    return {
        "source": clip.source, "line": clip.line, "audio_file": path, "text": clip.text,
        "speaker": clip.speaker, "language": clip.language, "duration_s": clip.duration_s,
        "split": clip.split, "status": "kept", "kind": "", "reason": "", "remedy": "",
        "clip_id": clip.id,
    }  # fmt: skip


def _problem_row(problem: Problem) -> dict[str, object]:
    duration_s = float("nan") if problem.duration_s is None else problem.duration_s
    return {
        "source": problem.source, "line": problem.line, "audio_file": problem.audio_file,
        "text": problem.text, "speaker": "", "language": "", "duration_s": duration_s, "split": "",
        "status": "dropped", "kind": problem.kind, "reason": problem.reason,
        "remedy": problem.remedy, "clip_id": "",
    }  # fmt: skip


def _groups(clips: Sequence[Clip], name: str) -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, float]] = {}
    for clip in clips:
        group = groups.setdefault(getattr(clip, name), {"clips": 0, "minutes": 0.0})
        group["clips"] += 1
        group["minutes"] += clip.duration_s / 60
    return dict(sorted(groups.items()))


def _histogram(durations: Sequence[float]) -> list[int]:
    counts = [0] * len(_EDGES_S)
    for duration in durations:
        counts[max(i for i, edge in enumerate(_EDGES_S) if duration >= edge)] += 1
    return counts
