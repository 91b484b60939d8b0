"""Define `RunConfig`, all the settings of a run: frozen, and read from and written to JSON."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.core.errors import ConfigError, FieldProblem, within
from trainer.core.options import Values, build_options, option, to_values, unknown_name

FORMAT = 1  # of run.json; raise it when an older Timbre could not read a newer file
WRITTEN_BY = "timbre_version"
"""The key under which files name the version that wrote them; nothing depends on it."""
_DATA_PATHS = ("train_csv", "eval_csv", "train_data")
_INTERVAL = re.compile(r"^(\d+(?:\.\d+)?)\s*(steps?|epochs?|min(?:utes?)?)?$")


@dataclass(frozen=True)
class Interval:
    """How often something happens: every `amount` of `unit` (`steps`, `epochs` or `minutes`)."""

    amount: float
    unit: str


@dataclass(frozen=True)
class Choice:
    """One registry entry by name, with the options that differ from its defaults."""

    name: str
    options: Values = field(default_factory=dict)


_REPLACED_OPTIMIZERS = {
    "prodigy_reference": Choice("prodigy", {"implementation": "package"}),
    "schedule_free_reference": Choice("schedule_free_adamw", {"implementation": "package"}),
}
"""Optimizers that became an option of another one; old runs, files and commands still name them."""


def current_optimizer(choice: Choice) -> Choice:
    """Return an optimizer under its current name, with the options that its old name implied."""
    replacement = _REPLACED_OPTIMIZERS.get(choice.name)
    if replacement is None:
        return choice
    return Choice(replacement.name, replacement.options | choice.options)


# Each option is declared once: the form, the command line and the README read default, label, help
# and bounds from here. Defaults are chosen by hand; presets replace them by family and GPU memory.
@dataclass(frozen=True)
class DataConfig:
    """Which clips a run uses and how they are read."""

    train_csv: str = option(
        "", "Train CSV", "CSV or list file with one clip per row; any common layout."
    )
    eval_csv: str = option(
        "", "Eval CSV", "Clips for validation. Empty: a random split of the train CSV (see Seed)."
    )
    train_data: str = option(
        "", "Data folder", "A folder with a metadata file and the clips it lists."
    )
    language: str = option("en", "Language", "BCP-47 code for rows without a language.")
    # 0.3 s holds about one syllable; below it there is too little to align. Chosen by hand.
    min_duration_s: float = option(
        0.3, "Shortest clip (s)", "Shorter clips become problems in the ledger.", min=0.05, max=10.0
    )
    # Memory grows with the longest clip. Chosen by hand; families have limits of their own.
    max_duration_s: float = option(
        20.0, "Longest clip (s)", "Longer clips become problems in the ledger.", min=1.0, max=60.0
    )
    eval_fraction: float = option(
        0.05,
        "Eval share",
        "Share of recordings held out for validation when no eval CSV is given.",
        min=0.0,
        max=0.5,
    )
    columns: str = option(
        "",
        "Columns",
        "Which column holds what, for example audio=1, text=3, speaker=2; by number or heading. "
        "Empty: detected automatically.",
        advanced=True,
    )
    language_balance: float = option(
        0.0,
        "Language balance",
        "0: every clip once per epoch; 1: clips of rarer languages repeat until all languages have "
        "the same share.",
        min=0.0,
        max=1.0,
        advanced=True,
    )


@dataclass(frozen=True)
class TrainingConfig:
    """How long and how a run trains."""

    steps: int | None = option(
        None,
        "Steps",
        "Optimizer updates. Empty: computed from the epochs, or 30 epochs (at least 300 steps).",
        min=1,
    )
    epochs: float | None = option(
        None, "Epochs", "Passes over all train clips; set steps or epochs, not both.", min=0.01
    )
    batch_size: int = option(8, "Batch size", "Clips per device and micro-step.", min=1, max=4096)
    accumulate: int = option(
        1,
        "Gradient accumulation",
        "Micro-steps per step; multiplies the effective batch size.",
        min=1,
        max=4096,
    )
    max_positions: int = option(
        0,
        "Token budget",
        "Fill every micro-batch with as many clips as fit in this many positions (frames, or text "
        "and codes), padding included, instead of a fixed batch size. 0: off.",
        min=0,
        max=10_000_000,
        advanced=True,
    )
    # 1.0 is the usual choice for transformers.
    clip_norm: float = option(1.0, "Gradient clipping", "Largest gradient norm; 0: off.", min=0.0)
    # Off by default: an average needs another copy of the weights.
    ema_decay: float = option(
        0.0, "EMA decay", "Average the weights with this decay (0.999 is usual); 0: off.", min=0.0,
        max=0.99999, advanced=True,
    )  # fmt: skip
    # Off by default, so that a run has the length that was chosen.
    patience: int = option(
        0, "Early stopping", "Stop after this many validations without improvement; 0: off.", min=0
    )
    validate_every: str = option(
        "auto",
        "Validate every",
        "'200 steps', '2 epochs', '10 minutes' or auto (a tenth of the run).",
    )
    save_every: str = option(
        "auto",
        "Save every",
        "'200 steps', '2 epochs', '10 minutes' or auto (a tenth of the run).",
    )
    preview_every: str = option(
        "auto",
        "Preview every",
        "'200 steps', '2 epochs', '10 minutes', auto (a fifth of the run) or never.",
    )
    preview_text: str = option(
        "", "Preview sentence", "Spoken during the run. Empty: the text of the first eval clip."
    )
    preview_speaker: str = option(
        "",
        "Preview speaker",
        "Whose voice speaks it. Empty: the first eval clip's speaker.",
        advanced=True,
    )
    log_every: int = option(
        1, "Log every (steps)", "Steps between two points of the curves.", min=1, advanced=True
    )
    # More than one, so that a damaged checkpoint costs only the steps since the one before it.
    keep_last: int = option(
        3,
        "Checkpoints kept",
        "How many of the newest to keep; the best one is always kept as well.",
        min=1,
        max=100,
        advanced=True,
    )
    seed: int = option(
        1234, "Seed", "Determines data order, split and initial weights.", min=0, advanced=True
    )
    device: str = option(
        "auto",
        "Device",
        "auto, cpu, cuda or cuda:1; auto uses the first GPU, or the CPU if there is none.",
        advanced=True,
    )
    # Part of the run, not of the machine: it determines which clips share a step.
    num_processes: int = option(
        1,
        "GPUs",
        "Training processes, one per GPU (started by torchrun).",
        min=1,
        max=64,
        advanced=True,
    )
    check_room: bool = option(
        True,
        "Check for room",
        "Refuse to start if the disk cannot hold the checkpoints or memory cannot hold the "
        "weights.",
        advanced=True,
    )
    roll_back: bool = option(
        True,
        "Go back after NaN",
        "When the loss or the gradients stay NaN or infinite, go back once to the last checkpoint "
        "and continue in full precision or with a lower learning rate. Off: stop at once.",
        advanced=True,
    )
    # The upper bound only catches typing errors.
    loader_workers: int | None = option(
        None, "Loader workers", "Processes that compute features. Empty: by the number of cores.",
        min=0, max=128, advanced=True,
    )  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """All the settings of a run.

    `optimizations` maps each optimization that is on to its options; one that is missing is off.
    """

    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    family: Choice = Choice("fastspeech2")
    base: str = ""
    optimizer: Choice = Choice("adamw")
    schedule: Choice = Choice("cosine")
    optimizations: dict[str, Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # `object`, because the dataclass is frozen.
        object.__setattr__(self, "optimizer", current_optimizer(self.optimizer))
        # Collected and raised together, so that a form with three mistakes shows all three.
        problems = _interval_problems(self.training)
        if self.training.steps is not None and self.training.epochs is not None:
            both = "Steps and epochs are both set. Set one; the other follows from it."
            problems.append(FieldProblem(both, "training.steps", "training.epochs"))
        if self.data.train_csv and self.data.train_data:
            both = "A train CSV and a data folder are both set. Set only one of them."
            problems.append(FieldProblem(both, "data.train_csv", "data.train_data"))
        if problems:
            raise ConfigError(problems)

    def to_json(self) -> Values:
        """Return plain JSON values that `from_json` reads back to an equal RunConfig."""
        return {
            "format": FORMAT,
            "data": to_values(self.data),
            "training": to_values(self.training),
            "family": asdict(self.family),
            "base": self.base,
            "optimizer": asdict(self.optimizer),
            "schedule": asdict(self.schedule),
            "optimizations": self.optimizations,
        }

    @staticmethod
    def from_json(values: Values) -> "RunConfig":
        """Build a RunConfig from JSON values; missing parts take their defaults.

        Raises:
            ConfigError: names every unknown key and bad value, or a newer format.
        """
        _refuse_format(values.get("format", FORMAT))
        known = ["format", WRITTEN_BY, *_READERS]
        problems = [
            unknown_name(key, known, "part of a configuration")
            for key in values
            if key not in known
        ]
        parts: Values = {}
        for key, read in _READERS.items():
            if key in values:
                try:
                    parts[key] = read(values[key], key)
                except ConfigError as error:
                    problems += within(key, error.problems)
        if problems:
            raise ConfigError(problems)
        return RunConfig(**parts)

    def with_absolute_paths(self, absolute: Callable[[str], str] | None = None) -> "RunConfig":
        """Return a copy whose clips and base are absolute paths, which work from any folder.

        `trainer.config.resolve.with_absolute_paths` includes those in the family's options.
        """
        convert = absolute or absolute_path
        base = self.base.strip() and convert(self.base.strip())
        return replace(self, data=absolute_data(self.data, convert), base=base)

    def with_values(self, **parts: Any) -> "RunConfig":
        """Return a copy with some parts replaced."""
        return replace(self, **parts)


def read_config(path: Path) -> RunConfig:
    """Read a RunConfig from a JSON file.

    Raises:
        ConfigError: the file does not exist, is not JSON, or is not a configuration.
    """
    return RunConfig.from_json(read_values(path))


def read_values(path: Path) -> Values:
    """Read the values that a JSON file sets of a RunConfig, without filling in defaults.

    Raises:
        ConfigError: the file does not exist, is not JSON, or is not a configuration.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist. Enter the path of a configuration file."
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} is not a JSON file: {error}.") from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds {type(values).__name__}; expected a JSON object, as in run.json."
        )
    # Through a RunConfig and back, so that the values are checked and in their standard form.
    whole = RunConfig.from_json(values).to_json()
    return {
        key: {name: whole[key][name] for name in value}
        if key in ("data", "training")
        else whole[key]
        for key, value in values.items()
        if key in _READERS
    }


def absolute_path(path: str) -> str:
    """Return an absolute path; `~name` of an unknown user is kept as it is."""
    # Not Path.expanduser: it raises for an unknown user, where this keeps the text. Not resolve():
    # links stay links, so that a run follows a dataset that is moved behind its link.
    return str(Path(os.path.expanduser(path)).absolute())


def absolute_data(data: DataConfig, absolute: Callable[[str], str]) -> DataConfig:
    """Return the settings of the clips with absolute paths."""
    typed = {name: getattr(data, name).strip() for name in _DATA_PATHS}
    return replace(data, **{name: path and absolute(path) for name, path in typed.items()})


def merge_values(base: Values, over: Values) -> Values:
    """Merge JSON values into others, recursively; a Choice with another name replaces the old."""
    merged = dict(base)
    # The options of one optimizer mean nothing to another, so a new name discards the old ones.
    for key, value in over.items():
        old = merged.get(key)
        renamed = isinstance(value, dict) and isinstance(old, dict) and _names_differ(old, value)
        if isinstance(value, dict) and isinstance(old, dict) and not renamed:
            merged[key] = merge_values(old, value)
        else:
            merged[key] = value
    return merged


def parse_interval(text: str) -> Interval | None:
    """Read '200', '200 steps', '2 epochs' or '10 minutes'; None for 'auto' and 'never'.

    Raises:
        ConfigError: the text is none of these.
    """
    cleaned = text.strip().lower()
    if cleaned in ("auto", "never"):
        return None
    match = _INTERVAL.match(cleaned)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            f"'{text}' is not a valid interval; enter for example "
            "200 steps, 2 epochs, 10 minutes or auto."
        )
    unit = (match[2] or "steps")[0]  # the initial tells step, epoch and minute apart
    return Interval(float(match[1]), {"s": "steps", "e": "epochs", "m": "minutes"}[unit])


def _names_differ(old: Values, new: Values) -> bool:
    return "name" in old and "name" in new and old["name"] != new["name"]


def _interval_problems(training: TrainingConfig) -> list[str]:
    problems = []
    for name in ("validate_every", "save_every", "preview_every"):
        try:
            parse_interval(getattr(training, name))
        except ConfigError as error:
            problems += [FieldProblem(each, f"training.{name}") for each in error.problems]
    return problems


def _refuse_format(made_by: object) -> None:
    if not isinstance(made_by, int):
        raise ConfigError(
            f"'format' is {made_by!r}; expected the number {FORMAT}. Correct it or leave it out."
        )
    if made_by > FORMAT:
        raise ConfigError(
            f"This configuration has format {made_by}; this version of Timbre reads formats up to "
            f"{FORMAT}. Update Timbre, or use the version that wrote it."
        )


def _read_data(value: object, key: str) -> DataConfig:
    return build_options(DataConfig, _read_object(value, key), key)


def _read_training(value: object, key: str) -> TrainingConfig:
    return build_options(TrainingConfig, _read_object(value, key), key)


def _read_object(value: object, key: str) -> Values:
    if not isinstance(value, dict):
        raise ConfigError(f"'{key}' is {value!r}; expected a JSON object of names and values.")
    return value


def _read_text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"'{key}' is {value!r}; expected text.")
    return value


def _read_choice(value: object, key: str) -> Choice:
    # A bare name is the short form for files written by hand.
    if isinstance(value, str):
        return Choice(value)
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        options = value.get("options", {})
        if isinstance(options, dict) and set(value) <= {"name", "options"}:
            return Choice(value["name"], options)
    raise ConfigError(f"'{key}' is {value!r}; expected a name, or an object with name and options.")


def _read_optimizations(value: object, key: str) -> dict[str, Values]:
    if isinstance(value, list):
        return {str(name): {} for name in value}
    if isinstance(value, dict) and all(isinstance(options, dict) for options in value.values()):
        return value
    raise ConfigError(
        f"'{key}' is {value!r}; expected a list of names, or a JSON object of names and options."
    )


_READERS: dict[str, Callable[[object, str], object]] = {
    "data": _read_data,
    "training": _read_training,
    "family": _read_choice,
    "base": _read_text,
    "optimizer": _read_choice,
    "schedule": _read_choice,
    "optimizations": _read_optimizations,
}
