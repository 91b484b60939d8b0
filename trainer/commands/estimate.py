"""`estimate`: estimate the memory of a run before it starts."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from trainer.commands._command import Command, Echo
from trainer.config.cli_flags import config_from_args
from trainer.config.presets import apply_preset
from trainer.config.resolve import find_family, with_absolute_paths
from trainer.core.device import GIB, Device
from trainer.core.run_config import RunConfig


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    """Print the memory of the largest step of a configuration; return 1 if it does not fit."""
    from trainer.profiling.memory_fit import estimate_fit, estimate_levels, find_fix
    from trainer.training.assemble import choose_device

    add = parser.add_argument_group("the estimate").add_argument
    add("--gpu-memory", type=float, metavar="GIB", help="estimate for a GPU with this much memory")
    add("--json", action="store_true", help="print JSON")
    add("--fix", action="store_true", help="if it does not fit, find settings that do")
    add("--levels", action="store_true", help="compare the levels of gradient checkpointing")
    parser.epilog = "Without --base, --size selects a random model of a real size, as in `measure`."
    # `--size` may also be an option of the family; only without a base it selects a random model.
    words, size = _split_size(argv)
    config, args = config_from_args(parser, words)
    device = choose_device(config.training.device)
    if args.gpu_memory:
        # As capable as a current GPU (9.0 is Hopper), so that no optimization is ruled out.
        device = Device("cuda", 0, f"a GPU with {args.gpu_memory:g} GiB", args.gpu_memory, (9, 0))
    config = with_absolute_paths(config)
    if args.levels:
        rows = estimate_levels(config, device, size=size)
        echo(json.dumps({"levels": rows}) if args.json else "\n".join(map(_describe_level, rows)))
        return 0
    found = estimate_fit(config, device, size=size)
    if args.fix:
        found["fix"] = None if found["fits"] else find_fix(config, device, size=size)
    if args.json:
        echo(json.dumps(found))
    else:
        _describe(found, echo)
    return 0 if found["fits"] else 1


def _split_size(argv: Sequence[str]) -> tuple[list[str], str]:
    """Return the arguments without `--size`, and the size of a random model if they name one."""
    from trainer.profiling.synthetic_batches import without_size

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--family", "--preset", "--base", "--size"):
        parser.add_argument(name, default="")
    known, _ = parser.parse_known_args(argv)
    config = apply_preset(RunConfig(), known.preset) if known.preset else RunConfig()
    family = find_family(known.family or config.family.name)
    sizes = family.synthetic.sizes if family.synthetic else ()
    if known.base or known.size not in sizes:
        return list(argv), ""
    return without_size(argv, family, known.size), known.size


def _describe_level(row: dict[str, Any]) -> str:
    verdict = "fits" if row["fits"] else "does not fit"
    return f"{row['level']:<7} {row['peak_gib']:6.2f} GiB  +{row['more']:.0%} compute  {verdict}"


def _describe(found: dict[str, Any], echo: Echo) -> None:
    parts = ("weights", "optimizer", "average", "working")
    listed = ", ".join(f"{name} {found[name] / GIB:.2f}" for name in parts if found[name])
    echo(f"Peak memory of a step: {found['peak_gib']:.2f} GiB ({listed}).")
    verdict = "It fits" if found["fits"] else "It does not fit"
    echo(f"{verdict}: {found['device']} has {found['usable_gib']:.1f} GiB usable for a run.")
    if found.get("fix"):
        words = ", ".join(found["fix"]["words"])
        echo(f"With {words} it needs {found['fix']['peak_gib']:.2f} GiB and fits.")
    elif not found["fits"] and "fix" in found:
        echo("No memory-saving option makes it fit, even with batch size 1.")
    if found["left_out"]:
        echo(f"Not included (may reduce memory): {', '.join(found['left_out'])}.")
    if found["s_per_step"] is None:
        echo("Seconds per step are unknown; measure them here with: python -m trainer measure")
    else:
        echo(f"{found['s_per_step']:.3f} s/step, from {found['s_per_step_from']}.")


COMMAND = Command("estimate", "estimate the memory of a run before it starts", 130, _run)
