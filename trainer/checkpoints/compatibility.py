"""Decide what may change between a checkpoint and a resume, and what the change means.

Every checkpoint records what determines its numbers: configuration, clips, torch version, device,
threads and number of processes. A difference at a resume is harmless, allowed but not bit for bit,
needs a fresh optimizer, or is refused.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from trainer.core.errors import ConfigError
from trainer.core.events import Notice
from trainer.core.options import Values
from trainer.core.run_config import Choice, RunConfig, current_optimizer, merge_values
from trainer.core.train_state import TrainState

HARMLESS = "harmless"
INEXACT = "allowed, not bit for bit"
FRESH_OPTIMIZER = "needs a fresh optimizer"
REFUSED = "refused"

# These decide when to look, save and stop, or how fast clips arrive, never what a step computes.
_HARMLESS = {
    "training.patience", "training.validate_every", "training.save_every",
    "training.preview_every", "training.preview_text", "training.preview_speaker",
    "training.log_every", "training.keep_last", "training.loader_workers", "training.roll_back",
}  # fmt: skip
_ENVIRONMENT = {"training.num_processes", "training.device"}
"""Options compared by their result (`device`, `world_size` below), not by what was requested."""
# Other clips, another network or other trained weights: the checkpoint would not be a state of the
# new run at all.
_REFUSED = ("data.", "family.", "base", "optimizations.lora")
_LABELS = {
    "clips": "the clips (their files or texts)",
    "torch": "the version of torch",
    "device": "the device",
    "threads": "the number of threads",
    "world_size": "the number of processes",
    "reproducible": "whether torch must use reproducible kernels",
}


@dataclass(frozen=True)
class Difference:
    """One thing that changed since a checkpoint was saved, and what the change means."""

    name: str
    before: object
    now: object
    kind: str

    def __str__(self) -> str:
        if self.name == "clips":
            return _LABELS["clips"]
        label = _LABELS.get(self.name, self.name)
        return f"{label} ({_short(self.before)}, now {_short(self.now)})"


def describe_scope(state: TrainState) -> Values:
    """Return what determines a run's numbers besides the checkpoint's contents, as plain JSON."""
    return {
        "config": state.config.to_json(),
        "clips": state.data_hash,
        "torch": str(torch.__version__),  # kernels may sum in another order in the next version
        "device": state.machine.name,  # the model of the GPU, since each has kernels of its own
        # Sums on a CPU are split among threads, so their number changes the rounding.
        "threads": torch.get_num_threads() if state.device.type == "cpu" else None,
        "world_size": state.world.size,
        "reproducible": torch.are_deterministic_algorithms_enabled(),
    }


def compare_scopes(before: Values, now: Values) -> list[Difference]:
    """Return what differs between the conditions of a checkpoint and those of now."""
    if not before:  # checkpoints of early versions recorded nothing
        return []
    found = compare_configs(before["config"], now["config"])
    found += [
        Difference(name, before[name], now[name], INEXACT)
        for name in _LABELS
        if name in before and before[name] != now[name]  # older checkpoints lack some names
    ]
    return found


def compare_configs(before: Values, now: Values) -> list[Difference]:
    """Return what differs between two configurations, given as JSON."""
    if "optimizer" in before:
        # A checkpoint may name an optimizer that has another name by now.
        before = before | {"optimizer": asdict(current_optimizer(Choice(**before["optimizer"])))}
    old, new = _flat(before), _flat(now)
    if "optimizer.name" in old and old["optimizer.name"] != new.get("optimizer.name"):
        # Options of different optimizers cannot be compared.
        old, new = (
            {k: v for k, v in d.items() if "optimizer.options" not in k} for d in (old, new)
        )
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return [
        Difference(name, old.get(name), new.get(name), _kind_of(name))
        for name in names
        if name not in _ENVIRONMENT and name != "format"  # `format` is the layout of run.json
    ]


def refuse_differences(differences: Sequence[Difference]) -> None:
    """Refuse differences that a run cannot take up.

    Raises:
        ConfigError: lists every refused difference.
    """
    problems = [
        f"A run cannot change {each}. Start a new run with a checkpoint of this one as its base."
        for each in differences
        if each.kind == REFUSED
    ]
    if problems:
        raise ConfigError(problems)


def report_differences(differences: Sequence[Difference], step: int) -> list[Notice]:
    """Return notices about what changed since the checkpoint of a step, one for each kind."""
    by_kind = {
        kind: ", ".join(str(each) for each in differences if each.kind == kind)
        for kind in (HARMLESS, INEXACT, FRESH_OPTIMIZER)
    }
    words = {
        HARMLESS: ("info", "The result stays the same bit for bit."),
        INEXACT: (
            "warning",
            "The run continues correctly, but the result will not be the same bit for bit.",
        ),
        FRESH_OPTIMIZER: (
            "warning",
            "The optimizer state is reset; weights and step count are kept. The loss may be "
            "unsteady for some steps.",
        ),
    }
    start = f"Changed since the checkpoint of step {step}: "
    return [
        Notice(words[kind][0], f"{start}{names}. {words[kind][1]}", "", step)
        for kind, names in by_kind.items()
        if names
    ]


def needs_fresh_optimizer(differences: Sequence[Difference]) -> bool:
    """Return whether the saved optimizer state can no longer be used."""
    return any(each.kind == FRESH_OPTIMIZER for each in differences)


def read_changes(config: RunConfig, words: Sequence[str]) -> Values:
    """Parse words such as `training.batch_size=4` into values as in `run.json`.

    Values are parsed as JSON, except for options that are text in the current configuration.

    Raises:
        ConfigError: a word has another form.
    """
    changes: Values = {}
    present = _flat(config.to_json())
    for word in words:
        path, sign, text = word.partition("=")
        if not sign or not all(path.split(".")):
            raise ConfigError(
                f"'{word}' is not a valid change. Write it as NAME=VALUE, for example "
                "training.batch_size=4 or optimizer.name=lion."
            )
        # A preview text such as "1984" must stay text and not become a number.
        value = text if isinstance(present.get(path), str) else _read_value(text)
        *parents, name = path.split(".")
        change: Values = {name: value}
        for part in reversed(parents):  # from the inside out: a.b=1 is {"a": {"b": 1}}
            change = {part: change}
        changes = merge_values(changes, change)
    return changes


def refuse_processes(changes: Values) -> None:
    """Refuse to change the number of processes with --set.

    Raises:
        ConfigError: says which flag to use instead.
    """
    count = changes.get("training", {}).get("num_processes")
    if count is not None:
        raise ConfigError(
            f"--set cannot change the number of processes. Use --gpus {count} instead: python -m "
            f"trainer resume RUN --gpus {count}. Every step still trains on the same clips."
        )


def changed_config(config: RunConfig, changes: Values) -> RunConfig:
    """Return a configuration with changes merged into it.

    Raises:
        ConfigError: a name or value is not valid in a configuration.
    """
    return RunConfig.from_json(merge_values(config.to_json(), changes))


def _read_value(text: str) -> object:
    try:
        # JSON gives numbers, booleans and null their types; any other word is plain text.
        return json.loads(text)
    except ValueError:
        return text


def _kind_of(name: str) -> str:
    if name in _HARMLESS:
        return HARMLESS
    if name.startswith(_REFUSED):
        return REFUSED
    # The loop sets the rate at every step, so it is not part of the optimizer's state.
    if name.startswith("optimizer.") and name != "optimizer.options.lr":
        return FRESH_OPTIMIZER
    return INEXACT


def _flat(values: Values, prefix: str = "") -> Values:
    """Flatten nested values to dotted names; empty `options` and `optimizations` are left out."""
    flat: Values = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        # An empty dict and an absent one mean the same here, so neither may show up as a change.
        elif not (isinstance(value, dict) and name in ("options", "optimizations")):
            flat[prefix + name] = value
    return flat


def _short(value: object) -> str:
    return "not set" if value is None else str(value)
