"""How child processes are started, what ends them, and that nothing else starts any."""

import ast
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trainer.core import child_process
from trainer.core.child_process import (
    NOWHERE,
    PIPE,
    PROJECT,
    end_child,
    run_child,
    start_child,
    wait_for_child,
)

_ELSEWHERE = {
    "trainer/optimizations/compile.py": "catches what torch's compiler raises, and starts nothing",
    "trainer/optimizers/_core/native.py": "not converted yet",
}
"""The files that may import subprocess besides the one place, and why."""
_POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups")


def _python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_nothing_else_imports_subprocess() -> None:
    folders = ("trainer", "webui")
    inside = [path for folder in folders for path in (PROJECT / folder).rglob("*.py")]
    found = set()
    for path in [PROJECT / "app.py", *inside]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if "subprocess" in names:
                found.add(path.relative_to(PROJECT).as_posix())

    assert "trainer/core/child_process.py" in found
    assert found - {"trainer/core/child_process.py"} <= set(_ELSEWHERE)


# What a child finds


def test_a_child_of_the_source_tree_is_told_where_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a/b")

    environment = child_process.child_environment()

    assert environment["PYTHONPATH"] == os.pathsep.join([str(PROJECT), "/a/b"])
    assert child_process.trainer_command("status", "a b")[1:] == [
        "-P",
        "-m",
        "trainer",
        "status",
        "a b",
    ]


def test_a_child_of_an_installed_timbre_keeps_its_search_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(child_process.site, "getsitepackages", lambda: [str(PROJECT)])

    assert "PYTHONPATH" not in child_process.child_environment()


# Running to the end


def test_a_child_reads_its_input_and_its_output_is_kept() -> None:
    code = "import sys; print(sys.stdin.read()[::-1]); print('oh', file=sys.stderr); sys.exit(3)"

    ended = run_child(_python(code), text=b"abc", timeout_s=60)

    assert (ended.returncode, ended.stdout.split(), ended.stderr.split()) == (3, [b"cba"], [b"oh"])


def test_output_that_is_not_wanted_is_dropped() -> None:
    ended = run_child(_python("print('loud')"), output=NOWHERE, timeout_s=60)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


@_POSIX
def test_a_child_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    # The grandchild holds the pipe open; reading it to its end would take 600 s.
    code = "import os, time; pid = os.fork(); open(f'{pid}', 'w'); time.sleep(600)"

    with pytest.raises(TimeoutError, match="longer than 1 s"):
        run_child(_python(code), timeout_s=1, folder=tmp_path)

    started = [int(path.name) for path in tmp_path.iterdir() if path.name != "0"]
    assert not any(_is_alive(pid) for pid in started)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# Lifetimes


@_POSIX
@pytest.mark.parametrize(
    ("lifetime", "own_group", "own_session"),
    [("caller", False, False), ("group", True, False), ("session", True, True)],
)
def test_a_lifetime_says_which_signals_of_the_terminal_reach_a_child(
    lifetime: child_process.Lifetime, own_group: bool, own_session: bool
) -> None:
    code = "import os; print(os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid())"

    with start_child(_python(code), output=PIPE, lifetime=lifetime) as child:
        said = child.communicate()[0].decode().split()

    assert said == [str(own_group), str(own_session)]


def test_a_child_with_a_log_does_not_wait_for_the_keyboard(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("wb") as log:
        child = start_child(_python("import sys; print(sys.stdin.read() + 'end')"), output=log)

    assert wait_for_child(child, 60)
    assert (tmp_path / "log.txt").read_text().strip() == "end"


def test_a_child_that_is_ended_is_gone_with_what_it_started() -> None:
    code = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-S', '-c', "
    code += "'import time; time.sleep(600)']); print(p.pid, flush=True); time.sleep(600)"
    with start_child(_python(code), output=PIPE) as child:
        assert child.stdout is not None
        inner = psutil.Process(int(child.stdout.readline()))

        assert not wait_for_child(child, 0)
        end_child(child)

    assert child.returncode is not None
    deadline = time.monotonic() + 60  # a kill is answered at once, if the machine is not busy
    while _is_alive(inner.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_alive(inner.pid)
    end_child(child)  # does nothing a second time


# Ctrl+C


@pytest.fixture
def _deaf() -> Iterator[None]:
    """Ignore SIGINT, as a shell does in a background job of a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@_POSIX
@pytest.mark.usefixtures("_deaf")
@pytest.mark.parametrize(("lifetime", "hears"), [("caller", False), ("session", True)])
def test_only_a_child_in_its_own_group_hears_interrupts_again(
    lifetime: child_process.Lifetime, hears: bool
) -> None:
    code = "import signal; from trainer.core.child_process import hear_interrupts; "
    code += "hear_interrupts(); print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    words = [sys.executable, "-c", code]

    with start_child(words, output=PIPE, lifetime=lifetime, folder=PROJECT) as child:
        said = child.communicate()[0].decode().strip()

    assert said == str(not hears)
