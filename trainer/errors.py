"""Errors meant for people: what happened, what was expected, what to do.

TimbreError
|-- ConfigError            a RunConfig, preset or option that cannot be used
|   `-- UnknownEntry       a name that no catalog holds
|-- DataError              a CSV, a clip or a folder that cannot be used
|-- MissingDependency      an optional package that is not installed
|-- CheckpointError        a checkpoint that is absent, damaged or of another shape
`-- RunError               a run folder that cannot be used as asked
    |-- RunExists          the folder is already there and is never overwritten
    |-- RunNotFound        no run lives in the folder
    |-- RunOwned           another process trains it right now
    `-- StopRequested      a person asked for a stop before the first step
"""

import errno
from collections.abc import Iterable, Sequence


class FieldProblem(str):
    """A problem that knows the fields it is about, as `training.steps`; it reads as a sentence."""

    fields: tuple[str, ...]

    def __new__(cls, text: str, *fields: str) -> "FieldProblem":
        problem = super().__new__(cls, text)
        problem.fields = fields
        return problem


def within(part: str, problems: Iterable[str]) -> list[str]:
    """Return problems whose fields are those of a part, as `steps` of `training`."""
    return [
        FieldProblem(problem, *(f"{part}.{field}" for field in problem.fields))
        if isinstance(problem, FieldProblem)
        else problem
        for problem in problems
    ]


def refusal_of_disk(error: OSError) -> str:
    """Say which path cannot be used and why, or that the disk is full; empty for other faults."""
    if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    where = "" if error.filename is None else f"{error.filename}: "
    return f"{where}{error.strerror}. Give another path, or mend this one."


class TimbreError(Exception):
    """Base of every error that is shown to a person as a sentence instead of a traceback."""

    exit_code = 1


class ConfigError(TimbreError):
    """A configuration that cannot be used; carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class UnknownEntry(ConfigError):
    """A model family, optimizer, optimization, schedule or preset that does not exist."""


class DataError(TimbreError):
    """A CSV, clip or folder that cannot be used."""


class MissingDependency(TimbreError):
    """An optional package that is not installed, with the command that installs it."""

    def __init__(self, package: str, purpose: str, command: str | None = None) -> None:
        self.package = package
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed. "
            f"Install it with: {command or f'pip install {package}'}"
        )


class CheckpointError(TimbreError):
    """A checkpoint that is absent, damaged or does not fit the model."""


class RunError(TimbreError):
    """A run folder that cannot be used as asked."""


class RunExists(RunError):
    """The folder is already there; a run folder is never overwritten."""


class RunNotFound(RunError):
    """The folder holds no run."""


class StopRequested(RunError):
    """A person asked for a stop while the run was still being prepared; nothing is lost."""

    exit_code = 10


class RunOwned(RunError):
    """Another process owns the run; exit code 75 lets a caller attach to it instead."""

    exit_code = 75
