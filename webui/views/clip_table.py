"""Render a manifest for the Data tab: totals, histograms, issues to review and the rows."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.core.types import Problem
from trainer.data.lists.findings import KINDS, Finding, leak_notes
from trainer.data.lists.manifest import Manifest
from trainer.data.lists.preview import ListPreview
from webui.views.markup import render
from webui.views.text_edits import TextEdits

PAGE_ROWS = 200
COLUMNS = {
    "source": ("List", 90), "line": ("Line", 60), "text": ("Text", 260),
    "duration_s": ("Seconds", 80), "status": ("Status", 80), "reason": ("Reason", 240),
    "remedy": ("Suggested fix", 240), "audio_file": ("Audio file", 190),
    "speaker": ("Speaker", 110), "split": ("Split", 80), "clip_id": ("Clip", 150),
}  # fmt: skip
"""The columns of the ledger that the page shows: headings and widths (px)."""

_PROBLEMS = {
    "too_long": "Too long", "too_short": "Too short", "missing_audio": "Audio not found",
    "empty_text": "No text", "damaged_text": "Damaged text", "wrong_columns": "Wrong columns",
    "broken_row": "Malformed row", "duplicate": "Duplicate", "leak": "In train and eval",
    "silent_audio": "Silent", "unreadable_audio": "Unreadable audio", "empty_audio": "No sound",
    "truncated_audio": "Truncated audio", "refused_path": "Path not allowed",
    "not_finite": "Invalid samples",
}  # fmt: skip
_LETTERS = (0, 10, 20, 40, 60, 80, 100, 150, 200, 300, 500)


@dataclass(frozen=True)
class TableView:
    """What part of the ledger is shown: a page of all rows, of problem rows or of one kind."""

    page: int = 1
    only_problems: bool = False
    kind: str = ""
    draft: TextEdits = field(default_factory=TextEdits)


def report(manifest: Manifest) -> str:
    """Render the totals of a manifest as HTML."""
    summary = manifest.summary()
    durations = summary["durations"]
    lengths = Counter(_edge(len(clip.text)) for clip in manifest.clips)
    return render(
        "data_report", summary=summary,
        files=[(Path(source["path"]).name, source) for source in summary["sources"]],
        speakers=_names(list(summary["speakers"])),
        sample_rates=_names(_with_counts(summary["sample_rates"])),
        held_out=_held_out(manifest), notes=[*manifest.notes, *leak_notes(manifest.clips)],
        histograms={
            "Clips by duration (s)": _bars(durations["edges_s"], durations["counts"]),
            "Clips by text length (characters)": _bars(
                _LETTERS, [lengths[edge] for edge in _LETTERS]
            ),
        },
    )  # fmt: skip


def findings_table(manifest: Manifest, findings: Sequence[Finding], heard: str) -> str:
    """Render a table with one row per kind of problem or finding, and `heard` below it.

    A button's `data-action` is `show`, `leave-out` or `limit`; its `data-kind` is the kind.
    """
    problems: dict[str, list[Problem]] = defaultdict(list)
    for problem in manifest.problems:
        problems[problem.kind].append(problem)
    odd: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        odd[finding.kind].append(finding)
    rows = [_problem_row(kind, found) for kind, found in sorted(problems.items())]
    rows += [_finding_row(kind, odd[kind]) for kind in KINDS if kind in odd]
    return render("findings", rows=rows, heard=heard)


def ledger_page(
    manifest: Manifest, view: TableView, findings: Sequence[Finding] = ()
) -> tuple[list[list[str]], str]:
    """Return one page of the ledger as text cells, and a sentence that describes the page."""
    table = manifest.table()
    if view.only_problems:
        table = table.loc[table["status"] != "kept"]
    odd: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        odd[finding.clip.id].append(finding)
    if view.kind:
        ids = {finding.clip.id for finding in findings if finding.kind == view.kind}
        table = table.loc[(table["kind"] == view.kind) | table["clip_id"].isin(list(ids))]
    pages = max(1, -(-len(table) // PAGE_ROWS))
    page = min(max(1, view.page), pages)
    first = (page - 1) * PAGE_ROWS
    part = table.iloc[first : first + PAGE_ROWS].to_dict("records")
    rows = [_cells(row, odd.get(row["clip_id"], []), view.draft) for row in part]
    of = f" ({label_of(view.kind)})" if view.kind else ""
    if not rows:
        return [], "No rows with problems." if view.only_problems else f"No rows{of}."
    words = f"Rows {first + 1} to {first + len(rows)} of {len(table)}{of}, page {page} of {pages}."
    return rows, words


def places_of(manifest: Manifest, findings: Sequence[Finding], kind: str) -> frozenset:
    """Return the rows (list, line) with a kind of problem or finding."""
    problems = {(p.source, p.line) for p in manifest.problems if p.kind == kind}
    odd = {(f.clip.source, f.clip.line) for f in findings if f.kind == kind}
    return frozenset(problems | odd)


def limit_for(manifest: Manifest, kind: str) -> float | None:
    """Return the limit (s) that keeps all rows that are too long or too short; None if none are."""
    lengths = [p.duration_s for p in manifest.problems if p.kind == kind and p.duration_s]
    if not lengths or kind not in ("too_long", "too_short"):
        return None
    if kind == "too_long":
        return min(60.0, float(math.ceil(max(lengths))))
    return max(0.05, math.floor(min(lengths) * 20) / 20)


def describe_columns(list_preview: ListPreview | None, name: str) -> str:
    """Render the first rows of a list as HTML, with the role of each column."""
    roles = list_preview.roles if list_preview is not None else {}
    role_of = {column: role for role, column in roles.items()}
    return render("columns", preview=list_preview, name=name, role_of=role_of)


def label_of(kind: str) -> str:
    """Return the heading of a kind of problem or finding."""
    if kind in KINDS:
        return KINDS[kind][0]
    return _PROBLEMS.get(kind, kind.replace("_", " ").capitalize())


@dataclass(frozen=True)
class _Issue:
    """One row of the issues to review; `buttons` maps actions to labels."""

    kind: str
    count: int
    minutes: float
    remedy: str
    buttons: dict[str, str]

    @property
    def label(self) -> str:
        return label_of(self.kind)


def _problem_row(kind: str, problems: Sequence[Problem]) -> _Issue:
    minutes = sum(problem.duration_s or 0.0 for problem in problems) / 60
    remedy, _ = Counter(problem.remedy for problem in problems).most_common(1)[0]
    is_limit = kind in ("too_long", "too_short")
    limit = {"limit": "Adjust the limit to keep them"} if is_limit else {}
    buttons = {"show": "Show", **limit, "leave-out": "Remove from list"}
    return _Issue(kind, len(problems), minutes, remedy, buttons)


def _finding_row(kind: str, findings: Sequence[Finding]) -> _Issue:
    minutes = sum(finding.clip.duration_s for finding in findings) / 60
    buttons = {"show": "Show", "leave-out": "Exclude"}
    return _Issue(kind, len(findings), minutes, KINDS[kind][1], buttons)


def _cells(row: dict[str, Any], odd: Sequence[Finding], draft: TextEdits) -> list[str]:
    place = (row["source"], row["line"])
    if odd:
        row["reason"] = "; ".join(f"{label_of(f.kind)}: {f.words}" for f in odd)
        row["remedy"] = KINDS[odd[0].kind][1]
    if place in draft.texts:
        row["text"], row["status"] = draft.texts[place], "changed"
    if place in draft.left_out:
        row["status"] = "excluded"
    return [_cell(name, row[name]) for name in COLUMNS]


def _cell(name: str, value: Any) -> str:
    if name == "duration_s":
        return "" if value != value else f"{value:.2f}"
    return str(value)


def _held_out(manifest: Manifest) -> str:
    """Name the recordings that a split held out; empty if the lists define the split."""
    if any(source.split for source in manifest.sources) or not manifest.val:
        return ""
    recordings = sorted({clip.recording for clip in manifest.val if clip.recording})
    whole = {clip.recording for clip in manifest.train}.isdisjoint(recordings)
    return _names(recordings) if whole and recordings else ""


def _with_counts(rates: dict[str, int]) -> list[str]:
    if len(rates) == 1:
        return [f"{rate} Hz" for rate in rates]
    return [f"{rate} Hz ({count} clips)" for rate, count in rates.items()]


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8]) or "none"
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _edge(letters: int) -> int:
    return max(edge for edge in _LETTERS if letters >= edge)


def _bars(edges: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int, int]]:
    """Return the label, count and height (px) of each bar up to the last; none if all are empty."""
    most = max(counts, default=0)
    if not most:
        return []
    last = max(index for index, count in enumerate(counts) if count) + 1
    ends = [*(f"-{edge:g}" for edge in edges[1:]), "+"]
    return [
        (f"{edge:g}{end}", count, round(60 * count / most))
        for edge, end, count in zip(edges[:last], ends, counts[:last], strict=False)
    ]
