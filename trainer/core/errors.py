"""Define the errors that users see; each says what happened, what was expected and what to do.

TimbreError
|-- ConfigError            a RunConfig, preset or option is invalid
|   `-- UnknownEntry       no registry has an entry of that name
|-- DataError              a CSV, clip or folder cannot be used
|-- MissingDependency      an optional package is not installed
|-- CheckpointError        a checkpoint is missing, damaged or does not fit the model
`-- RunError               a run folder cannot be used as requested
    |-- RunExists          the folder already exists; it is never overwritten
    |-- RunNotFound        the folder holds no run
    |-- RunOwned           another process is training the run
    `-- StopRequested      the user stopped the run before its first step
"""

import errno
from collections.abc import Iterable, Sequence


# A subclass of str, so that lists of problems, the command line and the page can treat it as the
# sentence it is, and only the form has to look at its fields.
class FieldProblem(str):
    """A sentence about a problem that also names its fields, such as `training.steps`."""

    fields: tuple[str, ...]

    def __new__(cls, text: str, *fields: str) -> "FieldProblem":
        problem = super().__new__(cls, text)
        problem.fields = fields
        return problem


def within(part: str, problems: Iterable[str]) -> list[str]:
    """Return problems with the name of a part put before their fields: `steps` -> `part.steps`."""
    return [
        FieldProblem(problem, *(f"{part}.{field}" for field in problem.fields))
        if isinstance(problem, FieldProblem)
        else problem
        for problem in problems
    ]


def refusal_of_disk(error: OSError) -> str:
    """Describe an error of the file system in a sentence; empty for other kinds of OSError."""
    # A full disk or quota may be reported without a file name, by a write to an open file.
    if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    where = "" if error.filename is None else f"{error.filename}: "
    return f"{where}{error.strerror}. Use another path or fix this one."


class TimbreError(Exception):
    """Base of all errors that are shown as a sentence instead of a traceback."""

    exit_code = 1  # of the process that raised it; subclasses say what a caller should do


class ConfigError(TimbreError):
    """A configuration is invalid; holds every problem found, not only the first."""

    exit_code = 2  # as argparse exits for a wrong command line

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class UnknownEntry(ConfigError):
    """A model family, optimizer, optimization, schedule or preset does not exist."""


class DataError(TimbreError):
    """A CSV, clip or folder cannot be used."""


class MissingDependency(TimbreError):
    """An optional package is not installed; the message names the command that installs it."""

    def __init__(self, package: str, purpose: str, command: str | None = None) -> None:
        self.package = package
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed. "
            f"Install it with: {command or f'pip install {package}'}"
        )


class CheckpointError(TimbreError):
    """A checkpoint is missing, damaged or does not fit the model."""


class RunError(TimbreError):
    """A run folder cannot be used as requested."""


class RunExists(RunError):
    """The folder already exists; a run folder is never overwritten."""


class RunNotFound(RunError):
    """The folder holds no run."""


class StopRequested(RunError):
    """The user stopped the run while it was being prepared; no training is lost."""

    exit_code = 10  # as for a run that was stopped while training: not to be restarted


class RunOwned(RunError):
    """Another process is training the run."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h; a caller can attach to the run instead


class MemoryFragmented(TimbreError):
    """Reserved memory is too fragmented to use; a new process starts with unfragmented memory.

    `step`: the last finished step, to be saved before this process ends; None if an update was
    lost.
    """

    exit_code = 30  # the supervisor restarts the run

    def __init__(self, text: str, step: int | None) -> None:
        self.step = step
        super().__init__(text)
