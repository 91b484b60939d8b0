"""Plan a benchmark: which trials it has and what they are measured with."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainer.core.device import Device
from trainer.core.options import describe
from trainer.core.registry import discover
from trainer.core.run_config import RunConfig, merge_values
from trainer.core.specs import STAGES, Optimization
from trainer.profiling.measurements import ByName, Trial

GUIDE = ("gradient_checkpointing", "sdpa", "mixed_precision")
"""The three optimizations of the guide this project grew from, in its order."""

FIRST, CHOSEN, AGAIN, ALL = "fp32", "chosen", "fp32_again", "all"


@dataclass(frozen=True)
class BenchmarkPlan:
    """Everything a benchmark is measured with.

    `size` names a model with random weights; empty: the base's size. `lengths` (`longest` or
    `spread`) applies to synthetic clips. `goals`: whether to include the trials of the project's
    goals; None: only on a GPU.
    """

    config: RunConfig
    size: str = ""
    lengths: str = "longest"
    minutes: float = 10.0
    command: str = ""
    goals: bool | None = None

    def config_of(self, row: Trial) -> RunConfig:
        """Return the configuration of a trial."""
        values = merge_values(self.config.to_json(), row.changes)
        return replace(RunConfig.from_json(values), optimizations=row.boxes)


def plan_trials(device: Device, chosen: ByName | None = None) -> tuple[list[Trial], list[str]]:
    """Return the trials, most useful first, and notes about what is left out and why.

    `chosen` holds the user's own optimizations with their options, measured second. The trial with
    all optimizations is made last by `trial_of_all`, when it is known which of them work.
    """
    boxes, notes = available_optimizations(device)
    rows = [Trial(FIRST, "fp32, no optimizations", ["ladder", "guide"], {})]
    if chosen:
        entries = discover("trainer.optimizations", Optimization)
        label = "as chosen: " + " + ".join(entries[name].label for name in chosen)
        rows.append(Trial(CHOSEN, label, ["chosen"], chosen))
    # TF32 and SDPA are what a plain PyTorch user turns on, so speed is compared with them too.
    fair = [name for name in ("tf32", "sdpa") if name in boxes]
    rows.append(_trial("+".join(fair), [*fair], boxes, "ladder"))
    # The guide's optimizations are added one by one, to show what each contributes.
    taken: list[str] = []
    for name in GUIDE:
        if name in boxes:
            taken.append(name)
            rows.append(_trial("+".join(taken), taken, boxes, "guide"))
    # Each alone: this also shows which of them fail, before all are combined.
    rows += [_trial(name, [name], boxes, "alone") for name in boxes]
    # A trial whose optimizations are all unavailable here would only repeat the first.
    return _merged(row for row in rows if row.boxes or row.name == FIRST), notes


def trial_of_all(device: Device, measured: list[Trial]) -> Trial:
    """Return the trial of all optimizations that worked alone and train the same weights."""
    boxes, _ = available_optimizations(device)
    alone = {next(iter(row.boxes)): row for row in measured if len(row.boxes) == 1}
    first = next(row for row in measured if row.name == FIRST)
    kept, notes = {}, []
    for name, options in boxes.items():
        row = alone.get(name)
        if name == "reproducible":
            notes.append(f"{name} is left out: it disables others on purpose")
        elif row is not None and row.state in ("refused", "failed", "deadline"):
            notes.append(f"{name} is left out: it did not work alone")
        elif row is not None and row.state == "skipped":
            notes.append(f"{name} is left out: there was no time to test it alone")
        # LoRA, for example: fewer trained weights would make the combination incomparable.
        elif row is not None and row.is_done and row.trained != first.trained:
            notes.append(f"{name} is left out: it trains different weights")
        else:
            kept[name] = options
    return Trial(ALL, "all of them", ["ladder", "guide"], kept, notes=notes)


def available_optimizations(device: Device) -> tuple[ByName, list[str]]:
    """Return the optimizations a device supports with their options, in stage order.

    The second value says why each of the others is unavailable.
    """
    entries = discover("trainer.optimizations", Optimization).values()
    boxes: ByName = {}
    notes = []
    for entry in sorted(entries, key=lambda entry: (STAGES.index(entry.stage), entry.name)):
        values = _unconditional(entry)
        reason = entry.unavailable(device)
        # `unavailable` is about the device alone; `refuse` also looks at the options.
        if reason is None and entry.refuse is not None:
            reason = entry.refuse(device, entry.options(**values))
        if reason is None:
            boxes[entry.name] = values
        else:
            notes.append(f"{entry.name}: {reason}")
    return boxes, notes


def _unconditional(entry: Optimization) -> dict[str, object]:
    """Return options that force an optimization on, even if it would not pay off."""
    whens = [info for info in describe(entry.options) if info.name == "when"]
    return {"when": "always"} if whens and "always" in whens[0].choices else {}


def _trial(name: str, names: list[str], boxes: ByName, group: str) -> Trial:
    entries = discover("trainer.optimizations", Optimization)
    label = " + ".join(entries[each].label for each in names)
    return Trial(name, label, [group], {each: boxes[each] for each in names})


def _merged(rows: Iterable[Trial]) -> list[Trial]:
    """Return every set of optimizations once, with all groups it belongs to."""
    found: dict[str, Trial] = {}
    for row in rows:
        # Sorted, because the order of ticking does not change what is applied.
        key = json.dumps(row.boxes, sort_keys=True)
        if key in found:
            found[key].groups = list(dict.fromkeys([*found[key].groups, *row.groups]))
        else:
            found[key] = row
    return list(found.values())
