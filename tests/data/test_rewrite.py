"""Edited lists: a new file that reads back as meant, and never a change to the old one."""

from pathlib import Path

import pytest

from tests.helpers.clips import write_list, write_tone
from trainer.core.errors import DataError
from trainer.core.run_config import DataConfig
from trainer.data.lists.manifest import Manifest, read_manifest
from trainer.data.lists.rewrite import rewrite_list


def _manifest(folder: Path, *rows: str, columns: str = "", name: str = "train.csv") -> Manifest:
    for clip in ("a", "b", "c"):
        write_tone(folder / "wavs" / f"{clip}.wav")
    path = write_list(folder / name, *rows)
    return read_manifest(DataConfig(train_csv=str(path), columns=columns, eval_fraction=0.0))


def _texts(path: Path) -> list[tuple[str, str, str]]:
    found = read_manifest(DataConfig(train_csv=str(path), eval_fraction=0.0))
    assert found.problems == ()
    return [(Path(clip.audio_path).name, clip.text, clip.speaker) for clip in found.clips]


def test_edits_go_to_a_new_list_beside_the_old_one(tmp_path: Path) -> None:
    rows = ["a.wav|ann|Helo there.", "b.wav|ann|Good day.", "c.wav|bob|Come in, please."]
    manifest = _manifest(tmp_path, *rows)
    before = (tmp_path / "train.csv").read_bytes()

    first = rewrite_list(manifest.sources[0], texts={1: "Hello  there."}, left_out=[2])
    second = rewrite_list(manifest.sources[0], texts={1: "Hello."}, left_out=[])

    assert (tmp_path / "train.csv").read_bytes() == before
    assert [first.path.name, second.path.name] == ["train-edited.csv", "train-edited-2.csv"]
    assert _texts(first.path) == [
        ("a.wav", "Hello there.", "ann"), ("c.wav", "Come in, please.", "bob")
    ]  # fmt: skip
    assert second.num_rows == 3


@pytest.mark.parametrize(
    "text", ['She said "so".', "one | two", 'a ""b"" c', "\uc548\ub155", "=1+1"]
)
def test_any_text_comes_back_as_it_was_written(tmp_path: Path, text: str) -> None:
    manifest = _manifest(tmp_path, "a.wav|Hello there.", "b.wav|Good day.")

    done = rewrite_list(manifest.sources[0], texts={2: text}, left_out=[])

    assert [row[1] for row in _texts(done.path)] == ["Hello there.", text]


def test_in_another_folder_the_clips_are_named_in_full(tmp_path: Path) -> None:
    manifest = _manifest(tmp_path, "a|Hello there.", "b|Good day.")
    (tmp_path / "elsewhere").mkdir()

    done = rewrite_list(manifest.sources[0], texts={}, left_out=[1], folder=tmp_path / "elsewhere")

    assert _texts(done.path) == [("b.wav", "Good day.", "speaker")]


def test_rows_that_were_problems_stay_and_can_be_mended(tmp_path: Path) -> None:
    manifest = _manifest(tmp_path, "a.wav|Hello there.", "b.wav|", "gone.wav|Good day.")
    assert [problem.kind for problem in manifest.problems] == ["empty_text", "missing_audio"]

    done = rewrite_list(manifest.sources[0], texts={2: "Now it says something."}, left_out=[])

    found = read_manifest(DataConfig(train_csv=str(done.path), eval_fraction=0.0))
    assert [clip.text for clip in found.clips] == ["Hello there.", "Now it says something."]
    assert [problem.kind for problem in found.problems] == ["missing_audio"]


def test_lines_that_cannot_be_split_are_named(tmp_path: Path) -> None:
    manifest = _manifest(tmp_path, "audio_file|text|speaker_name", "a.wav|Hello.|ann", "b.wav")

    done = rewrite_list(manifest.sources[0], texts={}, left_out=[])

    assert done.lost_lines == (3,)
    assert done.num_rows == 1


def test_what_cannot_come_back_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    manifest = _manifest(tmp_path, "a.wav|Hello there.", "b.wav|Good day.")

    with pytest.raises(DataError, match="cannot be saved unchanged"):
        rewrite_list(manifest.sources[0], texts={1: "a\x07b"}, left_out=[])
    with pytest.raises(DataError, match="No row would be left"):
        rewrite_list(manifest.sources[0], texts={}, left_out=[1, 2])

    assert not list(tmp_path.glob("*edited*"))


def test_told_columns_are_believed(tmp_path: Path) -> None:
    rows = ["utt|who|spoken|clip", "1|ann|Hello there.|a.wav", "2|bob|Good day.|b.wav"]

    by_number = _manifest(tmp_path, *rows, columns="audio=4, text=3, speaker=2")
    by_name = _manifest(tmp_path, *rows, columns="audio=clip,text=spoken")
    done = rewrite_list(
        by_number.sources[0], texts={}, left_out=[], columns="audio=4, text=3, speaker=2"
    )

    assert [(clip.text, clip.speaker) for clip in by_number.clips] == [
        ("Hello there.", "ann"), ("Good day.", "bob")
    ]  # fmt: skip
    assert [clip.speaker for clip in by_name.clips] == ["speaker"] * 2
    assert [row[1] for row in _texts(done.path)] == ["Hello there.", "Good day."]


def test_a_title_above_a_list_of_told_columns_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    rows = ["My clips", "ann|Hello there.|a.wav", "bob|Good day.|b.wav"]

    found = _manifest(tmp_path, *rows, columns="audio=3,text=2,speaker=1")

    assert [clip.text for clip in found.clips] == ["Hello there.", "Good day."]
    assert [problem.line for problem in found.problems] == [1]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("audio=9,text=1", "no column '9' for the audio"),
        ("sound=1", "'sound=1' is not a valid column"),
        ("audio=1", "at least"),
    ],
)
def test_columns_that_are_not_there_are_refused(tmp_path: Path, columns: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        _manifest(tmp_path, "a.wav|Hello there.", "b.wav|Good day.", columns=columns)
