"""Keep unsaved edits of a dataset (changed texts, excluded rows) and save them as a new CSV."""

import json
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainer.core.errors import DataError
from trainer.core.run_config import DataConfig
from trainer.data.lists.manifest import Manifest
from trainer.data.lists.rewrite import rewrite_list
from webui.studio import ASSETS, Studio

Place = tuple[str, int]
"""A row: the name of its list and its line number."""


@dataclass(frozen=True)
class TextEdits:
    """Unsaved changes to the lists at these paths."""

    lists: tuple[str, ...] = ()
    texts: dict[Place, str] = field(default_factory=dict)
    left_out: frozenset[Place] = frozenset()

    @classmethod
    def read(cls, text: str | None, manifest: Manifest) -> "TextEdits":
        """Parse the draft that the page keeps; return an empty one if it is for other lists."""
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
        """Return the draft as JSON for the page; an empty string if nothing changed."""
        if not self:
            return ""
        texts = [[*place, words] for place, words in self.texts.items()]
        left_out = sorted(map(list, self.left_out))
        return json.dumps({"lists": self.lists, "texts": texts, "left_out": left_out})

    def __bool__(self) -> bool:
        return bool(self.texts or self.left_out)

    def with_text(self, place: Place, text: str) -> "TextEdits":
        """Return a draft in which a row has another text.

        Raises:
            DataError: the text has no letter or digit.
        """
        if not any(letter.isalnum() for letter in text):
            raise DataError("The text has no words. Write what is spoken, or exclude the clip.")
        return replace(self, texts=self.texts | {place: " ".join(text.split())})

    def without(self, places: frozenset[Place]) -> "TextEdits":
        """Return a draft with these rows excluded as well."""
        return replace(self, left_out=self.left_out | places)

    def describe(self) -> str:
        """Summarize the unsaved changes in a Markdown sentence."""
        parts = [
            f"{count} {words}"
            for count, words in (
                (len(self.texts), "texts changed" if len(self.texts) != 1 else "text changed"),
                (
                    len(self.left_out),
                    "rows excluded" if len(self.left_out) != 1 else "row excluded",
                ),
            )
            if count
        ]
        return f"**Not saved yet:** {', '.join(parts)}. Training uses the saved list."


def save_edits(
    studio: Studio, manifest: Manifest, draft: TextEdits, data: DataConfig, folder: str
) -> tuple[DataConfig, str]:
    """Save edited lists as new CSV files; return the data settings that use them, and a message.

    Raises:
        DataError: nothing was changed, the folder does not exist, or a list cannot be written.
    """
    if not draft:
        raise DataError("There are no changes to save.")
    wanted = Path(studio.absolute(folder)) if folder.strip() else None
    if wanted is not None and not wanted.is_dir():
        raise DataError(
            f"{wanted} is not a folder. Enter an existing folder, or leave the field empty."
        )
    changed = {name for name, _ in (*draft.texts, *draft.left_out)}
    paths, told = {"train": "", "val": ""}, []
    for source in manifest.sources:
        path = source.path
        # A column setting applies to every list, so all lists must be rewritten together.
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
    missing = f" Unparsable lines were dropped: {lost}." if lost else ""
    return f"Saved {num_rows} rows as {path}.{missing}"


def _default_folder(studio: Studio, path: Path) -> Path | None:
    """Return the folder for a new list: None (beside the old one), except for bundled files."""
    if not path.is_relative_to(ASSETS):
        return None
    folder = studio.uploads / f"edited-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    return folder
