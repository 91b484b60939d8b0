"""Catalogs: a new file is a new entry, and what cannot be an entry is loud."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.core.errors import UnknownEntry
from trainer.core.registry import discover, find
from trainer.core.specs import OptimizerSpec, Schedule

ENTRY = "from trainer.core.specs import Schedule\nSPEC = Schedule('{}', 'A', 'b', object, min)\n"
MakePackage = Callable[[dict[str, str]], str]
_numbers = itertools.count()


@pytest.fixture
def make_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePackage:
    """Return a function that writes files as a package under a name never used before."""

    def make(files: dict[str, str]) -> str:
        name = f"catalog_{next(_numbers)}"
        for path, text in ({"__init__.py": ""} | files).items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        return name

    return make


def test_every_file_and_folder_is_an_entry_sorted_by_name(make_package: MakePackage) -> None:
    package = make_package(
        {"z.py": ENTRY.format("first"), "a/__init__.py": ENTRY.format("second"), "a/part.py": ""}
    )

    assert list(discover(package, Schedule)) == ["first", "second"]


def test_a_name_with_an_underscore_in_front_is_no_entry(make_package: MakePackage) -> None:
    package = make_package({"a.py": ENTRY.format("a"), "_shared.py": "raise RuntimeError"})

    assert list(discover(package, Schedule)) == ["a"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"empty.py": ""}, "empty holds 0 entries of type Schedule; expected exactly 1"),
        ({"two.py": ENTRY.format("a") + "MORE = Schedule('b', 'B', 'b', object, min)"}, "holds 2"),
        (
            {"a.py": ENTRY.format("x"), "b.py": ENTRY.format("x")},
            "b: the name 'x' is already in use",
        ),
    ],
)
def test_a_file_that_cannot_be_an_entry_is_loud(
    files: dict[str, str], said: str, make_package: MakePackage
) -> None:
    package = make_package(files)

    with pytest.raises(TypeError, match=said):
        discover(package, Schedule)


def test_what_is_returned_may_be_changed_without_harm(make_package: MakePackage) -> None:
    package = make_package({"a.py": ENTRY.format("a")})

    discover(package, Schedule).clear()

    assert list(discover(package, Schedule)) == ["a"]


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UnknownEntry, match="'adam' is not a known optimizer.*mean 'adamw'"):
        find("trainer.optimizers", OptimizerSpec, "adam")
