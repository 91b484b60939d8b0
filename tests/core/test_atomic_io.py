"""Files and folders that are replaced as a whole."""

import ast
import os
import threading
from pathlib import Path

import pytest

from trainer.core.atomic_io import discard, is_leftover, replacing, write_atomic
from trainer.core.child_process import PROJECT as ROOT


def test_text_and_bytes_are_replaced(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", "Grüße\n")
    assert (tmp_path / "a").read_bytes() == "Grüße\n".encode()

    write_atomic(tmp_path / "a", b"\x00")
    assert (tmp_path / "a").read_bytes() == b"\x00"


def test_a_folder_replaces_another_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").touch()

    with replacing(tmp_path / "a") as partial:
        (partial / "deep").mkdir(parents=True)
        (partial / "deep" / "new").touch()

    assert [path.name for path in tmp_path.rglob("*")] == ["a", "deep", "new"]


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path: Path, is_folder: bool) -> None:
    (tmp_path / "a").write_text("old")

    with pytest.raises(OSError, match="full"), replacing(tmp_path / "a") as partial:
        if is_folder:
            partial.mkdir()
        (partial / "file" if is_folder else partial).write_text("half of the ne")
        raise OSError("the disk is full")

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_a_failing_fsync_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("old")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_atomic(tmp_path / "a", "new")

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_two_writers_of_one_file_do_not_share_a_partial_one(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def write(text: str) -> None:
        with replacing(tmp_path / "a") as partial:
            both.wait()  # both are writing at this moment
            partial.write_text(text)
            both.wait()

    threads = [threading.Thread(target=write, args=(letter * 9,)) for letter in "xy"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (tmp_path / "a").read_text() in ("x" * 9, "y" * 9)


def test_what_a_kill_leaves_is_told_from_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("shutil.rmtree", lambda *words, **options: None)
    discard(tmp_path / "folder")
    with replacing(tmp_path / "a") as partial:
        partial.touch()
        found = sorted(tmp_path.iterdir())

    assert len(found) == 2
    assert all(is_leftover(path) for path in found)
    assert not is_leftover(tmp_path / "a")
    assert not is_leftover(tmp_path / ".hidden")


def test_an_old_folder_comes_back_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()

    def fail(path: Path, target: Path) -> Path:
        raise OSError("no rename")

    with pytest.raises(OSError, match="no rename"), replacing(tmp_path / "a") as partial:
        partial.mkdir()
        monkeypatch.setattr(Path, "replace", fail)

    assert [path.name for path in tmp_path.iterdir()] == ["a"]


_RENAMES = {
    "trainer/core/atomic_io.py": "is the one place",
    "trainer/runs/control.py": "takes a request away, and writes nothing",
    "trainer/models/_weights.py": "replaces the files of an export together",
}
"""The files that may replace a file by a rename of their own, and why."""


def _is_rename(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    # Path.replace takes one argument, str.replace takes two, datetime.replace takes keywords.
    is_one = len(node.args) == 1 and not node.keywords
    is_os = isinstance(node.func.value, ast.Name) and node.func.value.id == "os"
    return node.func.attr == "replace" and (is_one or is_os)


def test_only_atomic_io_replaces_files_by_renaming() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("trainer", "webui", "benchmarks", "assets")
        for path in (ROOT / folder).rglob("*.py")
        if any(_is_rename(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    }

    assert "trainer/core/atomic_io.py" in found
    assert found <= set(_RENAMES)
