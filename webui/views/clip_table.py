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
from webui.views.compatibility_check import escape_html
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
    """Render the totals of a manifest as HTML; all text from the dataset is escaped."""
    summary = manifest.summary()
    facts = [
        f"<b>{summary['num_clips']}</b> clips",
        f"<b>{summary['minutes']:.1f}</b> minutes",
        f"<b>{summary['num_train']}</b> for training, <b>{summary['num_val']}</b> for evaluation",
        f"<b>{summary['num_problems']}</b> rows with problems "
        f"({summary['minutes_lost']:.1f} minutes lost)",
        "speakers: " + _names(list(summary["speakers"])),
        "sample rates: " + _names(_with_counts(summary["sample_rates"])),
    ]
    sources = [
        f"{Path(source['path']).name}: {source['num_rows']} rows, parsed as {source['dialect']}, "
        f"{source['encoding']}"
        for source in summary["sources"]
    ]
    notes = [*manifest.notes, *leak_notes(manifest.clips)]
    shown = "".join(f'<div class="notice">{escape_html(note)}</div>' for note in notes)
    lines = "".join(f'<span class="fact">{escape_html(source)}</span>' for source in sources)
    chips = "".join(f'<span class="fact">{fact}</span>' for fact in facts + _held_out(manifest))
    durations = summary["durations"]
    bars = _histogram("Clips by duration (s)", durations["edges_s"], durations["counts"])
    lengths = Counter(_edge(len(clip.text)) for clip in manifest.clips)
    bars += _histogram(
        "Clips by text length (characters)", _LETTERS, [lengths[edge] for edge in _LETTERS]
    )
    return (
        f'<div class="states"><div>{lines}</div><div>{chips}</div></div>{shown}'
        f'<div class="histograms">{bars}</div>'
    )


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
    said = f'<p class="quiet">{escape_html(heard)}</p>' if heard else ""
    if not rows:
        return f'<div class="findings"><p>No issues found.</p>{said}</div>'
    heads = "".join(
        f"<th>{head}</th>"
        for head in (
            _screen_reader_only("Kind"),
            "Rows",
            "Minutes",
            "Suggested fix",
            _screen_reader_only("Buttons"),
        )
    )
    return (
        '<div class="findings"><b>Issues to review</b><div class="scroll"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{said}</div>"
    )


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
    if list_preview is None:
        return f"<p>{escape_html(name)} has no columns to assign.</p>"
    role_of = {column: role for role, column in list_preview.roles.items()}
    heads = "".join(
        f"<th>{number + 1}. {escape_html(heading)}"
        f'<br><span class="quiet">{role_of.get(number, "not used")}</span></th>'
        for number, heading in enumerate(list_preview.headings)
    )
    rows = "".join(
        "<tr>" + "".join(f"<td dir='auto'>{escape_html(cell)}</td>" for cell in row) + "</tr>"
        for row in list_preview.rows
    )
    return (
        f'<div class="scroll findings"><b>{escape_html(name)}</b><table><thead><tr>{heads}</tr>'
        "</thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def label_of(kind: str) -> str:
    """Return the heading of a kind of problem or finding."""
    if kind in KINDS:
        return KINDS[kind][0]
    return _PROBLEMS.get(kind, kind.replace("_", " ").capitalize())


def _problem_row(kind: str, problems: Sequence[Problem]) -> str:
    minutes = sum(problem.duration_s or 0.0 for problem in problems) / 60
    remedies = Counter(problem.remedy for problem in problems)
    buttons = [_button("show", kind, "Show")]
    if kind in ("too_long", "too_short"):
        buttons.append(_button("limit", kind, "Adjust the limit to keep them"))
    buttons.append(_button("leave-out", kind, "Remove from list"))
    return _row(label_of(kind), len(problems), minutes, remedies.most_common(1)[0][0], buttons)


def _finding_row(kind: str, findings: Sequence[Finding]) -> str:
    minutes = sum(finding.clip.duration_s for finding in findings) / 60
    buttons = [_button("show", kind, "Show"), _button("leave-out", kind, "Exclude")]
    return _row(label_of(kind), len(findings), minutes, KINDS[kind][1], buttons)


def _row(label: str, count: int, minutes: float, remedy: str, buttons: Sequence[str]) -> str:
    return (
        f"<tr><td><b>{escape_html(label)}</b></td><td>{count}</td><td>{minutes:.1f}</td>"
        f'<td>{escape_html(remedy)}</td><td><span class="links">{"".join(buttons)}</span></td></tr>'
    )


def _button(action: str, kind: str, label: str) -> str:
    return (
        f'<button type="button" class="small" data-action="{action}" data-kind="{kind}">'
        f"{label}</button>"
    )


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


def _held_out(manifest: Manifest) -> list[str]:
    """Name the recordings that a split held out; empty if the lists define the split."""
    if any(source.split for source in manifest.sources) or not manifest.val:
        return []
    recordings = sorted({clip.recording for clip in manifest.val if clip.recording})
    whole = {clip.recording for clip in manifest.train}.isdisjoint(recordings)
    return [f"held out whole recordings: {_names(recordings)}"] if whole and recordings else []


def _with_counts(rates: dict[str, int]) -> list[str]:
    if len(rates) == 1:
        return [f"{rate} Hz" for rate in rates]
    return [f"{rate} Hz ({count} clips)" for rate, count in rates.items()]


def _screen_reader_only(words: str) -> str:
    """Return a heading that only screen readers see."""
    return f'<span class="sr-only">{words}</span>'


def _names(names: list[str]) -> str:
    shown = escape_html(", ".join(names[:8])) or "none"
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _edge(letters: int) -> int:
    return max(edge for edge in _LETTERS if letters >= edge)


def _histogram(title: str, edges: Sequence[float], counts: Sequence[int]) -> str:
    most = max(counts, default=0)
    if not most:
        return ""
    last = max(index for index, count in enumerate(counts) if count) + 1
    bars = []
    for index, (edge, count) in enumerate(zip(edges[:last], counts[:last], strict=True)):
        until = f"-{edges[index + 1]:g}" if index + 1 < len(edges) else "+"
        height = round(60 * count / most)
        bars.append(
            f'<div class="bar" title="{count} clips"><small>{count or ""}</small>'
            f'<i style="height:{height}px"></i><span>{edge:g}{until}</span></div>'
        )
    return f'<div class="histogram"><b>{title}</b><div>{"".join(bars)}</div></div>'
