"""Find the list files of a data folder, and which of them is for training and for validation."""

import os
from itertools import islice
from pathlib import Path

from trainer.core.errors import DataError
from trainer.data.lists.rows import AUDIO_EXTENSIONS

# In order of preference: a split that somebody made wins over the whole list beside it.
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
# Not .txt: licences and notes have it too, so it counts only under a known name.
_ENDINGS = (".list", ".csv", ".tsv", ".jsonl")


def find_lists(folder: Path) -> list[tuple[Path, str]]:
    """Return the list files of a data folder with their splits; "" means not split yet.

    Raises:
        DataError: the folder does not exist, has no list, or several lists with unknown names.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Enter a folder with a list and its clips.")
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
            raise DataError(f"{folder} contains several lists ({names}). Choose one as train CSV.")
    if num_audio := _count_audio(folder):
        raise DataError(
            f"{folder} contains {num_audio} audio files, but no list with their texts. Add a "
            "metadata.csv with a line for each file, such as clip.wav|What is said in it."
        )
    raise DataError(
        f"{folder} contains no list of clips. Expected metadata.csv, train.csv, esd.list or a "
        ".list file with an audio file and its text on each line."
    )


def find_dataset(folder: Path) -> Path:
    """Return the folder with the lists, which may be nested in an unpacked archive.

    Raises:
        DataError: no list was found.
    """
    names = {train for train, _ in _PAIRS}
    # Shallowest first, because deeper folders may hold old copies of the lists.
    for path, _, files in sorted(os.walk(folder), key=lambda found: found[0].count(os.sep)):
        if any(file.lower() in names or file.lower().endswith(_ENDINGS) for file in files):
            return Path(path)
    # It raises, with the message that suits what the folder contains.
    find_lists(folder)
    return folder


def _count_audio(folder: Path, most: int = 100_000) -> int:
    """Count audio files in a folder tree; symlinked folders are not followed."""
    files = (file for _, _, files in os.walk(folder) for file in files)
    return sum(file.lower().endswith(AUDIO_EXTENSIONS) for file in islice(files, most))
