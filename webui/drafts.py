"""Drafts: texts a person changed and rows left out, held by the page until they are a new CSV."""

import json
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainer.config import DataConfig
from trainer.data.manifest import Manifest
from trainer.data.rewrite import rewrite_list
from trainer.errors import DataError
from webui.studio import ASSETS, Studio

Place = tuple[str, int]
"""A row: the name of its list, and its line."""


@dataclass(frozen=True)
class Draft:
    """Changes that no file holds yet, of the lists at these paths and no others."""

    lists: tuple[str, ...] = ()
    texts: dict[Place, str] = field(default_factory=dict)
    left_out: frozenset[Place] = frozenset()

    @classmethod
    def read(cls, text: str | None, manifest: Manifest) -> "Draft":
        """Return the draft a page keeps as text; one of other lists, or none, is an empty one."""
        lists = tuple(source.path for source in manifest.sources)
        try:
            values = json.loads(text or "{}")
            texts = {(str(name), int(line)): str(words) for name, line, words in values["texts"]}
            left_out = frozenset((str(name), int(line)) for name, line in values["left_out"])
            is_of_these = tuple(values["lists"]) == lists
        except (ValueError, TypeError, KeyError):
            return cls(lists)
        return cls(lists, texts, left_out) if is_of_these else cls(lists)

    def as_text(self) -> str:
        """Return what a page keeps; empty for no changes."""
        if not self:
            return ""
        texts = [[*place, words] for place, words in self.texts.items()]
        left_out = sorted(map(list, self.left_out))
        return json.dumps({"lists": self.lists, "texts": texts, "left_out": left_out})

    def __bool__(self) -> bool:
        return bool(self.texts or self.left_out)

    def with_text(self, place: Place, text: str) -> "Draft":
        """Return it with another text for a row.

        Raises:
            DataError: the text says nothing.
        """
        if not any(letter.isalnum() for letter in text):
            raise DataError("The text says nothing. Write what is spoken, or leave the clip out.")
        return replace(self, texts=self.texts | {place: " ".join(text.split())})

    def without(self, places: frozenset[Place]) -> "Draft":
        """Return it with further rows left out."""
        return replace(self, left_out=self.left_out | places)

    def describe(self) -> str:
        """Say what is not saved yet."""
        parts = [
            f"{count} {words}"
            for count, words in (
                (len(self.texts), "texts changed" if len(self.texts) != 1 else "text changed"),
                (
                    len(self.left_out),
                    "rows left out" if len(self.left_out) != 1 else "row left out",
                ),
            )
            if count
        ]
        return f"**Not saved yet:** {', '.join(parts)}. Training reads what is saved."


def save_draft(
    studio: Studio, manifest: Manifest, draft: Draft, data: DataConfig, folder: str
) -> tuple[DataConfig, str]:
    """Write the lists of a draft anew; return the data that names them, and what was done.

    Raises:
        DataError: nothing was changed, the folder is none, or a list cannot be written anew.
    """
    if not draft:
        raise DataError("Nothing was changed, so there is nothing to save.")
    wanted = Path(studio.absolute(folder)) if folder.strip() else None
    if wanted is not None and not wanted.is_dir():
        raise DataError(f"{wanted} is not a folder. Name one that exists, or leave it empty.")
    changed = {name for name, _ in (*draft.texts, *draft.left_out)}
    paths, told = {"train": "", "val": ""}, []
    for source in manifest.sources:
        path = source.path
        # Columns as told hold for all lists of the data, so none of them can stay.
        if source.name in changed or data.columns:
            done = rewrite_list(
                source,
                texts={
                    line: text for (name, line), text in draft.texts.items() if name == source.name
                },
                left_out=[line for name, line in draft.left_out if name == source.name],
                folder=wanted or _default_folder(studio, Path(path)),
                language=data.language,
                columns=data.columns,
            )
            path = str(done.path)
            told.append(_tell(path, done.num_rows, done.lost_lines))
        paths["val" if source.split == "val" else "train"] = path
    edited = replace(
        data, train_csv=paths["train"], eval_csv=paths["val"], train_data="", columns=""
    )
    return edited, " ".join(told)


def _tell(path: str, num_rows: int, lost_lines: tuple[int, ...]) -> str:
    lost = ", ".join(str(line) for line in lost_lines[:10])
    missing = f" Lines that are no rows are not in it: {lost}." if lost else ""
    return f"Saved {num_rows} rows as {path}.{missing}"


def _default_folder(studio: Studio, path: Path) -> Path | None:
    """Return where a new list goes: beside the old one, but never among the bundled files."""
    if not path.is_relative_to(ASSETS):
        return None
    folder = studio.uploads / f"edited-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    return folder
