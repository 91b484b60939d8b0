"""`check`: read CSVs and list every clip and every problem."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from trainer.commands._command import Command, Echo
from trainer.commands._event_text import shown_progress
from trainer.config.cli_flags import data_from_args
from trainer.core.run_config import absolute_path
from trainer.core.types import Clip
from trainer.data.lists.manifest import Manifest, read_manifest


class LanguageCost(TypedDict):
    """What a language costs a family's vocabulary, as the family's survey reports it."""

    language: str
    unknown_characters: list[str]
    new_merges: int
    needs_language_token: bool
    clips_with_unknown: int
    clips: int
    tokens_per_character_after: float


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    parser.add_argument("--family", default="", help="also compute this family's features")
    parser.add_argument("--base", default="", help="the family's base checkpoint")
    parser.add_argument("--json", action="store_true", help="print JSON")
    data, args = data_from_args(parser, argv)
    manifest = read_manifest(data, progress=shown_progress())
    unusable, costs, alphabet = {}, [], {}
    if args.family:
        unusable, costs = _judge_for(args.family, args.base, manifest.clips)
        alphabet = _charset_for(args.family, args.base, manifest.clips)
    usable = [clip for clip in manifest.train if clip.id not in unusable]
    if args.json:
        values = manifest.summary() | {
            "clips": [asdict(clip) for clip in manifest.clips if clip.id not in unusable],
            "problems": [asdict(problem) for problem in manifest.problems],
            "unusable": unusable,
            "left_out": _left_out(manifest.clips, unusable),
            "language_costs": costs,
            "alphabet": alphabet,
            "notes": list(manifest.notes),
        }
        echo(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        for line in _describe(manifest, unusable, costs, alphabet):
            echo(line)
    return 0 if usable else 1  # 1: there is nothing to train on


def _describe(
    manifest: Manifest,
    unusable: dict[str, str],
    costs: list[LanguageCost],
    alphabet: dict[str, Any],
) -> list[str]:
    """Return the lines that describe what was read."""
    # First how each file was read, which explains most problems.
    lines = [
        f"{source.path}: {source.num_rows} rows, {source.dialect}, {source.encoding}"
        for source in manifest.sources
    ]
    lines += [f"Note: {note}" for note in manifest.notes]
    lines += [f"Problem: {problem}" for problem in manifest.problems]
    lines += [
        f"Problem: Line {clip.line} of {clip.source}: {unusable[clip.id]}"
        for clip in manifest.clips
        if clip.id in unusable
    ]
    lines += [_describe_cost(cost) for cost in costs]
    for letter in alphabet.get("letters", []):
        where = f"{letter['clips']} clips, {letter['minutes']:.1f} minutes"
        lines.append(f"Unknown character: {letter['letter']} ({letter['name']}), in {where}")
    kept = [clip for clip in manifest.clips if clip.id not in unusable]
    num_train = sum(clip.id not in unusable for clip in manifest.train)
    minutes = sum(clip.duration_s for clip in kept) / 60
    lines.append(
        f"{len(kept)} clips are usable ({minutes:.1f} minutes, {num_train} train, "
        f"{len(kept) - num_train} val), {len(manifest.problems) + len(unusable)} rows have "
        "problems."
    )
    return lines


def _left_out(clips: Sequence[Clip], unusable: dict[str, str]) -> list[dict[str, object]]:
    """Return a row for each clip that a family cannot use."""
    return [
        {
            "line": clip.line, "source": clip.source, "text": clip.text,
            "minutes": clip.duration_s / 60, "reason": unusable[clip.id],
        }
        for clip in clips
        if clip.id in unusable
    ]  # fmt: skip


def _describe_cost(cost: LanguageCost) -> str:
    """Describe how many tokens a language adds to the vocabulary."""
    letters = cost["unknown_characters"]
    added = len(letters) + cost["new_merges"] + cost["needs_language_token"]
    return (
        # 120 characters (chosen by hand) fit a terminal; Chinese text can bring thousands.
        f"Language {cost['language']}: {added} new tokens ({' '.join(letters)[:120]}); "
        f"{cost['clips_with_unknown']} of {cost['clips']} clips need them; "
        f"{cost['tokens_per_character_after']:.2f} tokens per character."
    )


def _judge_for(
    family_name: str, base_name: str, clips: Sequence[Clip]
) -> tuple[dict[str, str], list[LanguageCost]]:
    """Return why clips are unusable for a family, by clip id, and the costs of new languages."""
    from trainer.config.resolve import find_family
    from trainer.data.features.cache import FeatureCache, default_cache_folder
    from trainer.data.features.dataset import loader_workers
    from trainer.data.lists.listing import no_progress

    family = find_family(family_name)
    base = Path(absolute_path(base_name)) if base_name else None
    featurizer = family.featurizer(base, family.options())
    cache = FeatureCache(default_cache_folder() / family.name)
    workers = loader_workers(None)
    features, unusable = cache.collect(clips, featurizer, workers=workers, progress=no_progress)
    usable = [clip for clip in clips if clip.id in features]
    if not usable:  # a survey needs at least one clip
        return unusable, []
    corpus = family.survey(features, usable, family.options(), base, no_progress)
    return unusable | corpus.unusable, corpus.facts.get("language_costs", [])


def _charset_for(family_name: str, base_name: str, clips: Sequence[Clip]) -> dict[str, Any]:
    """Return the characters that a family does not know; see `describe_charset_coverage`."""
    from trainer.config.resolve import find_family
    from trainer.data.text.charset_coverage import describe_charset_coverage

    family = find_family(family_name)
    base = Path(absolute_path(base_name)) if base_name else None
    return describe_charset_coverage(family, base, family.options(), clips)


COMMAND = Command("check", "read CSVs and list every clip and every problem", 10, _run)
