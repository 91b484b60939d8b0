"""Lists of JSON lines: arrays stand in for audio, and every row that cannot be used says why."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.clips import write_tone
from tests.helpers.indextts2 import pair, write_arrays, write_manifest
from trainer.core.errors import DataError
from trainer.core.run_config import DataConfig
from trainer.data.lists.manifest import Manifest, read_manifest


def read(path: Path) -> Manifest:
    """Read a manifest without holding clips out."""
    return read_manifest(DataConfig(train_csv=str(path), eval_fraction=0.0))


def test_rows_with_arrays_need_no_audio(tmp_path: Path) -> None:
    rows = [write_arrays(tmp_path, number) for number in range(3)]

    manifest = read(write_manifest(tmp_path / "train_manifest.jsonl", rows))

    clip = manifest.clips[1]
    assert not manifest.problems
    assert (clip.text, clip.speaker, clip.language) == ("text 1", "ann", "ko")
    assert clip.audio_path == ""
    assert clip.duration_s == 0.9
    assert clip.arrays["codes"] == str(tmp_path / "codes" / "clip1.npy")
    assert clip.lengths == {"codes": 45, "condition": 8, "text_ids": 7}
    assert len({clip.id for clip in manifest.clips}) == 3
    assert manifest.table()["audio_file"].tolist()[1] == "codes/clip1.npy"


def test_pairs_of_one_target_are_clips_of_one_recording(tmp_path: Path) -> None:
    rows = [write_arrays(tmp_path, number) for number in range(3)]
    pairs = [pair(rows[0], rows[1]), pair(rows[0], rows[2]), pair(rows[2], rows[1])]

    manifest = read(write_manifest(tmp_path / "pairs.jsonl", pairs))

    first, second, third = manifest.clips
    assert first.id != second.id
    assert first.arrays["target_codes"] == second.arrays["target_codes"]
    assert first.recording == second.recording
    assert third.text == "text 2"
    assert first.duration_s == 0.8


def test_paths_of_another_machine_are_found_by_their_ends(tmp_path: Path) -> None:
    row = write_arrays(tmp_path, 0)
    moved = {
        name: f"/elsewhere/processed/{value}" if name.endswith("_path") else value
        for name, value in row.items()
    }

    manifest = read(write_manifest(tmp_path / "list.jsonl", [moved]))

    assert manifest.clips[0].arrays["condition"] == str(tmp_path / "condition" / "clip0.npy")


def test_rows_with_audio_are_read_as_from_a_csv(tmp_path: Path) -> None:
    write_tone(tmp_path / "a.wav")
    rows = [{"audio": "a.wav", "text": "hello there", "speaker": "bob"}]

    manifest = read(write_manifest(tmp_path / "list.jsonl", rows))

    assert manifest.clips[0].audio_path == str(tmp_path / "a.wav")
    assert manifest.clips[0].speaker == "bob"


def test_every_bad_row_is_a_problem_with_reason_and_remedy(tmp_path: Path) -> None:
    good, missing, broken, silent, pickled = (write_arrays(tmp_path, n) for n in range(5))
    (tmp_path / missing["codes_path"]).unlink()
    path = tmp_path / broken["codes_path"]
    path.write_bytes(path.read_bytes()[:-3])
    np.save(tmp_path / pickled["codes_path"], np.array([{}], dtype=object), allow_pickle=True)
    del silent["text_ids_path"]
    rows = [good, missing, broken, silent | {"text": ""}, pickled]
    listed = write_manifest(tmp_path / "list.jsonl", rows)
    listed.write_text(listed.read_text(encoding="utf-8") + "{half\n", encoding="utf-8")

    manifest = read(listed)

    found = {problem.line: problem.kind for problem in manifest.problems}
    assert len(manifest.clips) == 1
    assert found == {
        2: "missing_array",
        3: "unreadable_array",
        4: "empty_text",
        5: "unreadable_array",
        6: "broken_row",
    }
    assert all(problem.reason and problem.remedy for problem in manifest.problems)


def test_a_row_without_duration_and_codes_is_a_problem(tmp_path: Path) -> None:
    row = write_arrays(tmp_path, 0)
    rows = [{name: row[name] for name in ("text", "condition_path")}]

    manifest = read(write_manifest(tmp_path / "list.jsonl", rows))

    assert [problem.kind for problem in manifest.problems] == ["no_length"]


def test_a_file_without_any_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(json.dumps([1, 2]) + "\n", encoding="utf-8")

    with pytest.raises(DataError, match="no JSON lines"):
        read(path)


def test_a_folder_of_manifests_brings_both_splits(tmp_path: Path) -> None:
    rows = [write_arrays(tmp_path, number) for number in range(3)]
    write_manifest(tmp_path / "train_manifest.jsonl", rows[:2])
    write_manifest(tmp_path / "val_manifest.jsonl", rows[2:])

    manifest = read_manifest(DataConfig(train_data=str(tmp_path)))

    assert [clip.split for clip in manifest.clips] == ["train", "train", "val"]
