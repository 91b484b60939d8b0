"""Check in a child process which clips a model can use, and render the report as HTML."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from trainer.core.options import describe
from trainer.core.run_config import DataConfig
from webui.jobs.synthesis import ask_trainer
from webui.views.markup import render

_TIMEOUT_S = 3600.0  # Computing the features of many hours of speech can take that long.
_SHOWN = 50  # Rows of the table; chosen by hand, as are the 60 pieces of a text.
_PIECES = 60


def judge_for(family: str, base: str, data: DataConfig) -> dict[str, Any]:
    """Return the JSON report of `python -m trainer check` for a model family.

    Raises:
        RunError: the check failed; the message is the child's own.
    """
    words = ["check", "--json", f"--family={family}", *_data_words(data)]
    if base:
        words.append(f"--base={base}")
    too_long = (
        "Timed out after an hour. Finished features are cached, so the next attempt will be faster."
    )
    return ask_trainer(words, timeout_s=_TIMEOUT_S, too_long=too_long)


def describe_fitness(found: Mapping[str, Any], label: str) -> str:
    """Render the report as HTML."""
    left_out = found["left_out"]
    return render(
        "fitness", label=label, num_usable=len(found["clips"]),
        num_clips=len(found["clips"]) + len(left_out),
        minutes=sum(row["minutes"] for row in left_out), rows=left_out[:_SHOWN],
        num_more=max(0, len(left_out) - _SHOWN), costs=map(_describe_cost, found["language_costs"]),
        coverage=Markup(describe_charset_coverage(found.get("alphabet") or {})),
    )  # fmt: skip


def describe_charset_coverage(alphabet: Mapping[str, Any]) -> str:
    """Render the unknown letters and some example texts as HTML; empty without a report."""
    return render("charset_coverage", **alphabet, most_pieces=_PIECES) if alphabet else ""


def _describe_cost(cost: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of one language, and how many tokens it adds."""
    letters = cost["unknown_characters"]
    added = len(letters) + cost["new_merges"] + cost["needs_language_token"]
    return {**cost, "added": added, "letters": " ".join(letters)[:300]}


def _data_words(data: DataConfig) -> list[str]:
    """Return a DataConfig as command-line flags of `check`."""
    given = {info.name: getattr(data, info.name) for info in describe(DataConfig)}
    return [
        f"--{name.replace('_', '-')}={value}"
        for name, value in given.items()
        if value not in ("", None)
    ]
