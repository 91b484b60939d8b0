"""The faults that Timbre promises to survive, and which tests prove it for each.

python -m tests.helpers.faults prints every fault with its tests, and what is not covered yet. A
test carries `@pytest.mark.fault("A1", ...)`; the marks are read from the source, nothing is run.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FAULTS = {
    "A1": "the trainer is killed at any instant",
    "A2": "the trainer is killed at any operation of a save",
    "A3": "power fails and unsynced data is lost",
    "A4": "fsync returns an error",
    "A5": "the web server is killed or restarted during a run",
    "A6": "the trainer lives but hangs",
    "A7": "the system kills the trainer for want of memory",
    "A8": "native code segfaults",
    "A9": "a run is started several times at once",
    "A10": "a stale lock, or a process number that was given to another process",
    "A11": "Stop during preparation, compiling, saving or validation",
    "A12": "SIGTERM, SIGINT or SIGHUP: logout, service stop, shutdown",
    "A13": "suspend, or a clock that jumps",
    "A14": "the port is in use",
    "A15": "another version stopped the run than resumes it",
    "A16": "a fork after torch has worked in threads",
    "A17": "logs fill the disk",
    "B1": "the disk is full while a checkpoint is written",
    "B2": "the disk is full while events are written",
    "B3": "the disk is too small, and that is known before the start",
    "B4": "the run's folder cannot be written, or disappears",
    "B5": "a checkpoint is truncated or empty",
    "B6": "one bit of a checkpoint flips",
    "B7": "a checkpoint's manifest is absent or edited",
    "B8": "temporary folders are left behind by crashes",
    "B9": "a pointer to the latest checkpoint is broken",
    "B10": "a symlink in a run or dataset leads outside",
    "B11": "two files differ by case only, or a file system that ignores case",
    "B12": "names that other systems reserve, or that are too long",
    "B13": "a file name in another Unicode form than the CSV's",
    "B14": "spaces, quotes, newlines, emoji or a leading dash in a run's name",
    "B15": "a rename across devices",
    "B16": "retention deletes the best or the only valid checkpoint",
    "C1": "a byte order mark before the first header",
    "C2": "CRLF, CR or mixed line ends",
    "C3": "another delimiter, no header, headers in another order or language",
    "C4": "quotes that are unclosed, doubled or literal",
    "C5": "an encoding other than UTF-8",
    "C6": "NUL bytes, control characters, lone surrogates",
    "C7": "a field of more than 128 KiB",
    "C8": "a text that is empty, blank or only punctuation",
    "C9": "text and audio whose lengths do not go together, or are too long",
    "C10": "characters that the model does not know",
    "C11": "Unicode that is not normalised",
    "C12": "duplicate rows, shared audio, clips in both train and val",
    "C13": "no speaker column, or a speaker with one clip",
    "C14": "paths that climb out, URLs, UNC, home and variables",
    "C15": "a file that is absent, or has another extension",
    "C16": "a million rows",
    "C17": "spreadsheet formulas in text that is exported",
    "C18": "the dataset is edited during a run",
    "D1": "an audio file that is cut off",
    "D2": "an empty file, a header alone, or text that is called audio",
    "D3": "samples that are NaN, infinite or absurdly loud",
    "D4": "silence, constant signals, next to no sound",
    "D5": "clipped samples, a strong offset, hum",
    "D6": "wrong, mixed or lying sample rates",
    "D7": "stereo, surround, out-of-phase channels",
    "D8": "unusual sample formats and containers",
    "D9": "clips that are too long, too short, or begin with silence",
    "D10": "a decoder that crashes on damaged bytes",
    "D11": "a file on a share that never answers",
    "E1": "a loss that is no number",
    "E2": "a gradient that is no number under a finite loss",
    "E3": "exploding gradient norms",
    "E4": "the loss scale of half precision collapses",
    "E5": "the device runs out of memory in any phase",
    "E6": "memory runs out by fragmentation after hours",
    "E7": "another program takes the device's memory",
    "E8": "a sticky CUDA error",
    "E9": "no GPU, an old one, or an old driver",
    "E10": "torch.compile fails, or compiles again and again",
    "E11": "an optional package is absent",
    "E12": "the optimizer diverges silently",
    "E13": "a loader worker dies, or shared memory is full",
    "E14": "a run is resumed with other choices",
    "E15": "another number of processes, or another GPU",
    "F1": "browsers that close, sleep, are slow, or are many",
    "F2": "a history of 240,000 steps",
    "F3": "a torn last line, or steps done twice after a resume",
    "F4": "zip bombs, many files, nested zips, lying sizes",
    "F5": "archive members that climb out, link or clash",
    "F6": "a checkpoint that carries code",
    "F7": "markup in texts and names that the page shows",
    "F8": "requests from other sites or other local ports",
    "F9": "DNS rebinding",
    "F10": "giant or slow uploads, uploads from foreign pages",
    "F11": "paths that error texts or file routes disclose",
    "F12": "a page that other machines reach without a password",
    "F13": "a poisoned dependency",
    "F14": "commands in names and paths",
    "F15": "secrets in configurations, logs or checkpoints",
}
_TESTS = Path(__file__).resolve().parent.parent


@cache
def covered_by(folder: Path = _TESTS) -> dict[str, list[str]]:
    """Return the tests of each fault id that a mark names, unknown ids included."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for name, fault in _marks(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(fault, []).append(f"{path.relative_to(folder)}::{name}")
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (test, fault id) of every mark above a test or a class of tests."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            for call in ast.walk(decorator):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.fault":
                    yield from ((node.name, ast.literal_eval(argument)) for argument in call.args)


def report() -> str:
    """Return the catalogue with the tests of each fault, and what nothing covers."""
    covered = covered_by()
    lines = []
    for fault, words in FAULTS.items():
        lines.append(f"{fault:<4}{'+' if fault in covered else '-'} {words}")
        lines += [f"       {test}" for test in covered.get(fault, [])]
    uncovered = [fault for fault in FAULTS if fault not in covered]
    lines.append(f"{len(FAULTS) - len(uncovered)} of {len(FAULTS)} faults are covered by tests.")
    lines.append(f"Not covered: {' '.join(uncovered) or 'none'}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(report() + "\n")
