"""The catalogue of faults: every mark names a fault, and enough of them are covered."""

from pathlib import Path

from tests.helpers.faults import FAULTS, covered_by, report

_AT_LEAST = 85


def test_every_mark_names_a_fault_of_the_catalogue() -> None:
    assert sorted(set(covered_by()) - set(FAULTS)) == []


def test_enough_faults_are_covered() -> None:
    covered = set(covered_by()) & set(FAULTS)

    assert len(covered) >= _AT_LEAST, report().splitlines()[-1]


def test_marks_are_found_on_tests_and_on_single_cases(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.fault('A1', 'B2')\n"
        "def test_one(): ...\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.fault('C3'))])\n"
        "def test_two(x): ...\n"
    )

    found = covered_by(tmp_path)

    assert found == {
        "A1": ["test_some.py::test_one"],
        "B2": ["test_some.py::test_one"],
        "C3": ["test_some.py::test_two"],
    }
