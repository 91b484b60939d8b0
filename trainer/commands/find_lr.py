"""`find-lr`: find a learning rate with one short run."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.commands._command import Command, Echo
from trainer.config.cli_flags import config_from_args, refuse_missing_data
from trainer.config.resolve import with_absolute_paths
from trainer.core.errors import MissingDependency, RunExists
from trainer.core.run_config import RunConfig
from trainer.core.types import finite

if TYPE_CHECKING:
    from trainer.profiling.lr_finder import RateFinding


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    from trainer.profiling.lr_finder import find_rate
    from trainer.training.assemble import check_before_start

    add = parser.add_argument_group("the range test").add_argument
    add("--out", metavar="DIR", required=True, help="new folder for find-lr.json and find-lr.png")
    add("--lowest", type=float, help="lowest learning rate [1/100 of the usual rate]")
    add("--highest", type=float, help="highest learning rate [100 times the usual rate]")
    add("--lines", action="store_true", help="print one JSON line per step, for programs")
    config, args = config_from_args(parser, argv)
    refuse_missing_data(config)
    config, out = with_absolute_paths(config), Path(args.out)

    def say(done: int, total: int) -> None:
        if args.lines:
            echo(json.dumps({"done": done, "total": total}))

    check_before_start(config)
    # Before the test, which takes minutes, not after it.
    if out.exists():
        raise RunExists(f"{out} exists already and will not be overwritten. Use another folder.")
    finding = find_rate(config, lowest=args.lowest, highest=args.highest, progress=say)
    write_finding(finding, config, out, echo)
    echo(finding.text)
    return 0


def write_finding(finding: "RateFinding", config: RunConfig, out: Path, echo: Echo) -> None:
    """Write `find-lr.json` and `find-lr.png` into a new folder."""
    from trainer.profiling.lr_finder import draw_rates

    out.mkdir(parents=True)
    values = finite({"config": config.to_json()} | asdict(finding))
    (out / "find-lr.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    try:
        draw_rates(finding, out / "find-lr.png")
    except MissingDependency as error:
        echo(f"No chart was drawn: {error}")


COMMAND = Command("find-lr", "find a learning rate with one short run", 120, _run)
