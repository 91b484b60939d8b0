"""Drafts: changes of texts, kept by the page, that become a new list and nothing else."""

from pathlib import Path

import pytest

from tests.helpers.clips import write_list, write_tone
from tests.helpers.page import make_studio
from trainer.core.errors import DataError
from trainer.core.run_config import DataConfig
from trainer.data.lists.manifest import read_manifest
from webui.studio import demo_data
from webui.views.text_edits import TextEdits, save_edits

PLACE = ("train.csv", 2)


def _data(folder: Path, *rows: str) -> DataConfig:
    for name in ("a", "b"):
        write_tone(folder / f"{name}.wav")
    rows = rows or ("audio_file|text", "a.wav|Helo there.", "b.wav|Good day.")
    return DataConfig(train_csv=str(write_list(folder / "train.csv", *rows)), eval_fraction=0.0)


def test_a_draft_comes_back_from_the_page_and_another_lists_does_not(tmp_path: Path) -> None:
    manifest = read_manifest(_data(tmp_path))
    (tmp_path / "other").mkdir()
    other = read_manifest(_data(tmp_path / "other"))

    draft = (
        TextEdits.read("", manifest).with_text(PLACE, " Hello  there. ").without(frozenset([PLACE]))
    )

    assert TextEdits.read(draft.as_text(), manifest) == draft
    assert draft.texts == {PLACE: "Hello there."}
    assert not TextEdits.read(draft.as_text(), other)
    assert not TextEdits.read('{"texts": 3}', manifest)
    assert "1 text changed, 1 row excluded" in draft.describe()


def test_a_text_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no words"):
        TextEdits().with_text(PLACE, " ... ")


def test_a_saved_draft_is_the_data_to_train_on(tmp_path: Path) -> None:
    data = _data(tmp_path)
    manifest = read_manifest(data)
    draft = TextEdits.read("", manifest).with_text(PLACE, "Hello there.")

    edited, told = save_edits(make_studio(tmp_path), manifest, draft, data, "")

    assert [clip.text for clip in read_manifest(edited).clips] == ["Hello there.", "Good day."]
    assert edited.train_csv == str(tmp_path / "train-edited.csv")
    assert told == f"Saved 2 rows as {edited.train_csv}."


def test_columns_as_told_are_written_out(tmp_path: Path) -> None:
    data = _data(tmp_path, "x|a.wav|One two.", "y|b.wav|Three four.")
    told = DataConfig(data.train_csv, columns="audio=2,text=3", eval_fraction=0.0)
    manifest = read_manifest(told)
    draft = TextEdits.read("", manifest).with_text(("train.csv", 1), "Five six.")

    edited, _ = save_edits(make_studio(tmp_path), manifest, draft, told, "")

    assert edited.columns == ""
    assert [clip.text for clip in read_manifest(edited).clips] == ["Five six.", "Three four."]


def test_bundled_lists_are_not_written_beside(tmp_path: Path) -> None:
    studio, data = make_studio(tmp_path), demo_data()
    manifest = read_manifest(data)
    draft = TextEdits.read("", manifest).without(frozenset([PLACE]))

    edited, _ = save_edits(studio, manifest, draft, data, "")

    assert Path(edited.train_csv).is_relative_to(studio.uploads)
    assert edited.eval_csv == data.eval_csv
    found = read_manifest(edited)
    assert len(found.train) == len(manifest.train) - 1
    assert found.problems == ()


@pytest.mark.parametrize("folder", ["nowhere", ""])
def test_nothing_is_saved_without_a_folder_or_a_change(tmp_path: Path, folder: str) -> None:
    data = _data(tmp_path)
    manifest = read_manifest(data)
    draft = TextEdits.read("", manifest)
    draft = draft.with_text(PLACE, "Hello.") if folder else draft

    with pytest.raises(DataError):
        save_edits(make_studio(tmp_path), manifest, draft, data, folder)

    assert not list(tmp_path.rglob("*-edited*"))
