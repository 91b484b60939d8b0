"""Check in a child process which clips a model can use, and render the report as HTML."""

from collections.abc import Sequence
from html import escape
from typing import Any

from trainer.core.options import describe
from trainer.core.run_config import DataConfig
from webui.jobs.synthesis import ask_trainer

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


def describe_fitness(found: dict[str, Any], label: str) -> str:
    """Render the report as HTML; all text from the dataset is escaped."""
    left_out: Sequence[dict[str, Any]] = found["left_out"]
    minutes = sum(row["minutes"] for row in left_out)
    facts = [
        f"{label} can use <b>{len(found['clips'])}</b> of "
        f"{len(found['clips']) + len(left_out)} clips",
        f"<b>{minutes:.1f}</b> minutes would be skipped",
    ]
    chips = "".join(f'<span class="fact">{fact}</span>' for fact in facts)
    costs = "".join(_describe_cost(cost) for cost in found["language_costs"])
    rows = "".join(
        f"<tr><td>{row['line']}</td><td>{escape_html(row['text'][:80])}</td>"
        f"<td>{escape_html(row['reason'])}</td></tr>"
        for row in left_out[:_SHOWN]
    )
    more = f"<p>and {len(left_out) - _SHOWN} more</p>" if len(left_out) > _SHOWN else ""
    heads = "<tr><th>Line</th><th>Text</th><th>Reason skipped</th></tr>"
    table = f"<table>{heads}{rows}</table>{more}" if rows else ""
    read = describe_charset_coverage(found.get("alphabet") or {})
    return (
        f'<div class="states"><div>{chips}</div></div>{costs}'
        f'<div class="findings">{table}{read}</div>'
    )


def describe_charset_coverage(alphabet: dict[str, Any]) -> str:
    """Render the unknown letters and some example texts as HTML; empty without a report."""
    if not alphabet:
        return ""
    letters = alphabet["letters"]
    tiles = "".join(
        f'<span class="letter" title="{escape_html(letter["name"])}"><bdi>'
        f"{escape_html(letter['letter'])}</bdi>"
        f"<small>{letter['clips']} clips, {letter['minutes']:.1f} min</small></span>"
        for letter in letters
    )
    unknown = (
        f"<p><b>{len(letters)} letters are not in the model's alphabet</b>: they affect "
        f'{alphabet["minutes"]:.1f} minutes of clips.</p><div class="letters">{tiles}</div>'
        if letters
        else "<p><b>The model's alphabet covers every letter in the clips.</b></p>"
    )
    rows = "".join(_describe_reading(example) for example in alphabet["examples"])
    heads = "<tr><th>Line</th><th>Text</th><th>Cleaned</th><th>Text as the model sees it</th></tr>"
    return f"{unknown}<b>Text as the model sees it</b><table>{heads}{rows}</table>"


def _describe_reading(example: dict[str, Any]) -> str:
    unknown = set(example["unknown"])
    pieces = "".join(
        f'<span class="piece{" unknown" if piece in unknown else ""}">{escape_html(piece)}</span>'
        for piece in example["pieces"][:_PIECES]
    )
    more = " ..." if len(example["pieces"]) > _PIECES else ""
    return (
        f"<tr><td>{example['line']}</td><td dir='auto'>{escape_html(example['text'][:120])}</td>"
        f"<td dir='auto'>{escape_html(example['cleaned'][:120])}</td>"
        f"<td dir='auto'><span class='pieces'>{pieces}</span>{more}</td></tr>"
    )


def _describe_cost(cost: dict[str, Any]) -> str:
    letters = cost["unknown_characters"]
    added = len(letters) + cost["new_merges"] + cost["needs_language_token"]
    return (
        f'<div class="notice"><b>{escape_html(cost["language"])}</b> adds {added} tokens to the '
        ""
        f"vocabulary: <bdi>{escape_html(' '.join(letters)[:300])}</bdi><br>"
        f"{cost['clips_with_unknown']} "
        f"of {cost['clips']} clips need them; {cost['tokens_per_character_after']:.2f} tokens a "
        "character.</div>"
    )


def _data_words(data: DataConfig) -> list[str]:
    """Return a DataConfig as command-line flags of `check`."""
    given = {info.name: getattr(data, info.name) for info in describe(DataConfig)}
    return [
        f"--{name.replace('_', '-')}={value}"
        for name, value in given.items()
        if value not in ("", None)
    ]


def escape_html(text: str) -> str:
    """Escape text for HTML and for the template syntax that Gradio evaluates in it."""
    return escape(text).replace("{", "&#123;").replace("$", "&#36;").replace("`", "&#96;")
