"""A data folder -> its list files: which file names the clips to train on and which to hold out."""

import os
from itertools import islice
from pathlib import Path

from trainer.data.rows import AUDIO_EXTENSIONS
from trainer.errors import DataError

_PAIRS = (
    ("metadata_train.csv", ("metadata_eval.csv", "metadata_val.csv")),
    ("train.csv", ("eval.csv", "val.csv", "valid.csv", "validation.csv", "dev.csv")),
    ("train.list", ("val.list", "eval.list")),
    ("train.txt", ("val.txt", "eval.txt")),
    ("train_pairs.jsonl", ("val_pairs.jsonl",)),
    ("gpt_pairs_train.jsonl", ("gpt_pairs_val.jsonl",)),
    ("train_manifest.jsonl", ("val_manifest.jsonl",)),
    ("train.jsonl", ("val.jsonl", "eval.jsonl")),
    ("metadata.csv", ()),
    ("metadata.txt", ()),
    ("metadata.list", ()),
    ("esd.list", ()),
)
_ENDINGS = (".list", ".csv", ".tsv", ".jsonl")


def find_lists(folder: Path) -> list[tuple[Path, str]]:
    """Return the list files of a data folder with their splits; "" leaves the split open.

    Raises:
        DataError: the folder is absent, holds no list, or several without a known name.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Give a folder that holds a list and its clips.")
    by_name = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_file()}
    for train, evals in _PAIRS:
        if train in by_name:
            found = [by_name[name] for name in evals if name in by_name]
            if found:
                return [(by_name[train], "train"), (found[0], "val")]
            return [(by_name[train], "")]
    for ending in _ENDINGS:
        lists = [path for name, path in by_name.items() if name.endswith(ending)]
        if len(lists) == 1:
            return [(lists[0], "")]
        if lists:
            names = ", ".join(path.name for path in lists[:5])
            raise DataError(
                f"{folder} holds several lists ({names}). Name the one to use as train CSV."
            )
    if num_audio := _count_audio(folder):
        raise DataError(
            f"{folder} holds {num_audio} audio files, but no list of what is said in them. Write a "
            "metadata.csv beside them with a line such as clip.wav|What is said in it. for each."
        )
    raise DataError(
        f"{folder} holds no list of clips. Expected metadata.csv, train.csv, esd.list or a .list "
        "file with an audio file and its text on every line."
    )


def find_dataset(folder: Path) -> Path:
    """Return the folder that holds the lists, which may lie a few folders deep in an archive.

    Raises:
        DataError: there is no list.
    """
    names = {train for train, _ in _PAIRS}
    for path, _, files in sorted(os.walk(folder), key=lambda found: found[0].count(os.sep)):
        if any(file.lower() in names or file.lower().endswith(_ENDINGS) for file in files):
            return Path(path)
    find_lists(folder)
    return folder


def _count_audio(folder: Path, most: int = 100_000) -> int:
    """Count audio files below a folder; links to folders are not followed."""
    files = (file for _, _, files in os.walk(folder) for file in files)
    return sum(file.lower().endswith(AUDIO_EXTENSIONS) for file in islice(files, most))
