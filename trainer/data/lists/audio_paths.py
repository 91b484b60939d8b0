"""Find the audio file that a row names, or the reason why it cannot be found.

Each folder is listed once, so a hundred thousand rows cost only a few directory reads.
"""

import difflib
import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from trainer.data.lists.rows import AUDIO_EXTENSIONS, FOREIGN_EXTENSIONS

# Where datasets keep their audio: LJSpeech in wavs, Common Voice in clips.
SUBFOLDERS = ("", "wavs", "clips", "wav", "audio", "raw")
_EXTENSIONS = AUDIO_EXTENSIONS + FOREIGN_EXTENSIONS
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]+://")
_DRIVE = re.compile(r"^[A-Za-z]:[/\\]")
_MOST_HINTS = 50
"""Most "Did you mean" hints per list; each takes milliseconds, too slow for a million rows."""


@dataclass(frozen=True)
class Missing:
    """The reason why a cell names no usable file."""

    kind: str
    reason: str
    remedy: str


class _Listing:
    """The files and folders of one directory, found by exact or equivalent name."""

    def __init__(self, folder: str) -> None:
        self.files: set[str] = set()
        self.folders: set[str] = set()
        self._alike: dict[str, list[str]] = {}
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir():
                        self.folders.add(entry.name)
                    elif entry.is_file():
                        self.files.add(entry.name)
        # A folder that cannot be listed counts as empty; its rows report missing files.
        except (OSError, ValueError):
            return
        for name in sorted(self.files | self.folders, key=_extension_rank):
            for key in {_composed(name), _folded(name)}:
                self._alike.setdefault(key, []).append(name)
        for name in sorted(self.files, key=_extension_rank):
            if _is_audio(name):
                stem = os.path.splitext(name)[0]
                for key in {"stem " + _composed(stem), "stem " + _folded(stem)}:
                    self._alike.setdefault(key, []).append(name)

    def find_folder(self, name: str) -> str | None:
        """Return the folder with this name, else the only equivalent one."""
        return name if name in self.folders else self._alone(name, self.folders, "")

    def find_file(self, name: str) -> str | None:
        """Return the file with this name, else the only one with an equivalent name.

        Names are equivalent if they differ in case, Unicode form or audio extension only.
        """
        if name in self.files:
            return name
        stem = os.path.splitext(name)[0] if _is_audio(name) else name
        return self._alone(name, self.files, "") or self._alone(stem, self.files, "stem ")

    def _alone(self, name: str, among: set[str], prefix: str) -> str | None:
        for key in (_composed(name), _folded(name)):
            found = [other for other in self._alike.get(prefix + key, ()) if other in among]
            # "A.wav" and "a.wav" are two clips; "a.wav" and "a.mp3" are one, and WAV wins.
            if found and len({os.path.splitext(other)[0] for other in found}) == 1:
                return found[0]
        return None


class AudioFinder:
    """Finds the audio files that the rows of one list name."""

    def __init__(self, folder: Path) -> None:
        self._root = os.path.abspath(folder)
        self._listings: dict[str, _Listing] = {}
        self._hints_left = _MOST_HINTS

    def find(self, cell: str) -> str | Missing:
        """Return the absolute path of the file that a cell names, or why it is missing."""
        name = cell.strip()
        refused = self._refuse(name)
        if refused is not None:
            return refused
        # The Windows reading comes first, but on Linux a name may contain a backslash.
        spellings = [name.replace("\\", "/"), name] if "\\" in name else [name]
        for spelling in spellings:
            found = self._search(spelling)
            if found is not None:
                return found
        hint = self._nearest(spellings[0])
        return Missing(
            "missing_audio",
            f"{name} was not found.",
            f"Did you mean {hint}?" if hint else self._where(),
        )

    def _refuse(self, name: str) -> Missing | None:
        if not name:
            return Missing("missing_audio", "The row names no audio file.", "Fill in its name.")
        if _URL.match(name):
            remedy = "Download the file and use its path."
            return Missing("refused_path", f"{name} is a URL, not a file.", remedy)
        # Opening such a path makes Windows log in to a machine that the list chose.
        if name.startswith(("\\\\", "//")):
            remedy = "Copy the files next to the list."
            return Missing("refused_path", f"{name} is a network path.", remedy)
        relative = name.replace("\\", "/")
        if not os.path.isabs(relative) and not _DRIVE.match(name) and self._escapes(relative):
            remedy = "Move the audio next to the list, or use its absolute path."
            return Missing("refused_path", f"{name} is outside the list's folder.", remedy)
        return None

    def _escapes(self, relative: str) -> bool:
        path = os.path.normpath(os.path.join(self._root, relative))
        return path != self._root and not path.startswith(self._root.rstrip("/") + "/")

    def _search(self, name: str) -> str | None:
        if os.path.isabs(name):
            found = self._walk("/", os.path.normpath(name))
            return found or self._by_tail(name)
        if _DRIVE.match(name):
            return self._by_tail(name[2:])
        return self._below_root(os.path.normpath(name))

    def _below_root(self, name: str) -> str | None:
        for subfolder in SUBFOLDERS:
            found = self._walk(os.path.join(self._root, subfolder).rstrip("/") or "/", name)
            if found is not None:
                return found
        return None

    def _by_tail(self, name: str) -> str | None:
        """Find a file by the longest matching end of a path from another machine."""
        parts = [part for part in name.split("/") if part]
        # Four parts, chosen by hand: datasets are rarely deeper, and each try costs time.
        for start in range(max(0, len(parts) - 4), len(parts)):
            found = self._below_root("/".join(parts[start:]))
            if found is not None:
                return found
        return None

    def _walk(self, folder: str, name: str) -> str | None:
        parts = [part for part in name.split("/") if part and part != "."]
        if not parts:
            return None
        for depth, part in enumerate(parts[:-1]):
            step = os.path.join(folder, part)
            # A parent folder may be traversable without being readable, so try it first.
            if folder in self._listings or not os.path.isdir(step):
                known = self._list(folder).find_folder(part)
                if known is None and not os.path.isdir(step):
                    return None
                step = os.path.join(folder, known or parts[depth])
            folder = step
        found = self._list(folder).find_file(parts[-1])
        return None if found is None else os.path.join(folder, found)

    def _list(self, folder: str) -> _Listing:
        if folder not in self._listings:
            self._listings[folder] = _Listing(folder)
        return self._listings[folder]

    def _nearest(self, name: str) -> str:
        if not self._hints_left:
            return ""
        self._hints_left -= 1
        folder, _, last = name.rpartition("/")
        bases = [os.path.join(self._root, subfolder, folder) for subfolder in SUBFOLDERS]
        for base in [os.path.normpath(base) for base in [*bases, self._root]]:
            if os.path.isabs(folder) and not base.startswith(self._root):
                continue
            audio = [file for file in self._list(base).files if _is_audio(file)]
            # Only the first 2000 names, because fuzzy matching of long lists takes too long.
            # 0.8, chosen by hand: about one wrong letter in a short name.
            near = difflib.get_close_matches(last, audio[:2000], n=1, cutoff=0.8)
            if near:
                return os.path.relpath(os.path.join(base, near[0]), self._root)
        return ""

    def _where(self) -> str:
        return "Put it next to the list or into its wavs folder, or correct the name."


def _is_audio(name: str) -> bool:
    return name.lower().endswith(_EXTENSIONS)


def _extension_rank(name: str) -> tuple[int, str]:
    extension = os.path.splitext(name)[1].lower()
    rank = _EXTENSIONS.index(extension) if extension in _EXTENSIONS else len(_EXTENSIONS)
    return rank, name


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _folded(name: str) -> str:
    # Twice, because folding the case can decompose letters.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
