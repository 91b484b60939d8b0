"""Split long recordings into a folder of clips with a list, and transcribe them.

Every finished part is written to a journal, so a cut that was interrupted continues where it
stopped.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from trainer.core.atomic_io import append_line, write_atomic
from trainer.core.errors import DataError, RunExists
from trainer.data.audio.headers import AudioError, audio_facts
from trainer.data.lists.rewrite import as_table
from trainer.data.recordings.segmentation import Recording, cut_recording
from trainer.data.recordings.silence import SegmentationSettings
from trainer.inference.transcription import Transcriber

LIST_FILE = "list.csv"
_NOTES_FILE = "cutting.jsonl"  # the journal; JSON lines, so that a torn last line harms no other


class CutPhase(TypedDict):
    """Progress: `phase` is `cut` (recordings) or `text` (clips that are transcribed)."""

    phase: str
    done: int
    total: int


class CutSummary(TypedDict):
    """What a cut has made: counts, lengths in seconds, and why recordings were not used."""

    list: str
    clips: int
    clips_s: float
    recordings: int
    recordings_s: float
    faults: Sequence[str]
    without_text: int


Echo = Callable[[CutPhase | CutSummary], None]


@dataclass
class _CutProgress:
    """The journal of finished work: recordings that were cut completely, their clips and texts."""

    path: Path
    settings: dict[str, object] = field(default_factory=dict)
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def add(self, **note: object) -> None:
        """Append a note to the journal and apply it."""
        append_line(self.path, json.dumps(note, ensure_ascii=False))
        self.take(note)

    def take(self, note: dict[str, Any]) -> None:
        """Apply a note."""
        if "settings" in note:
            self.settings = note["settings"]
        elif "recording" in note:
            self.ended[note["recording"]] = note
            for name, *_ in note["clips"]:
                self.texts.pop(name, None)  # text of an earlier version of this recording
        elif "clip" in note:
            self.texts[note["clip"]] = note["text"]

    def clips(self, recordings: Sequence[Recording]) -> list[tuple[str, str]]:
        """Return the name and the speaker of every clip."""
        return [
            (name, recording.speaker)
            for recording in recordings
            for name, *_ in self.ended[str(recording.path)]["clips"]
        ]


def cut_recordings(
    recordings: Sequence[Recording],
    out: Path,
    cutting: SegmentationSettings,
    *,
    language: str,
    open_recogniser: Callable[[], Transcriber] | None,
    echo: Echo,
) -> Path:
    """Split recordings into clips in a folder and return the path of the clip list.

    Raises:
        RunExists: the folder holds other files, or clips that were cut with other settings.
        DataError: the lengths contradict each other, or no recording yielded a clip.
        MissingDependency, CheckpointError: the recogniser does not exist.
    """
    _refuse_odd(cutting)
    # Opened first, so that a missing recogniser is reported before hours of audio are split.
    recognise = open_recogniser() if open_recogniser else None
    notes = _open_notes(out, cutting)
    for number, recording in enumerate(recordings):
        echo({"phase": "cut", "done": number, "total": len(recordings)})
        # A recording that changed since it was split is split again.
        known = notes.ended.get(str(recording.path), {})
        if known.get("state") != _state_of(recording.path):
            notes.add(**_cut(recording, out, cutting))
    clips = notes.clips(recordings)
    summary = _sum_up(notes, recordings, out / LIST_FILE)
    if not clips:
        reason = next(iter(summary["faults"]), "They contain no speech.")
        raise DataError(f"The recordings yielded no clips. {reason} Choose recordings of speech.")
    # Written before the texts too: if transcription fails, the list is there to fill in by hand.
    _write_list(out / LIST_FILE, clips, notes.texts, language)
    if recognise is not None:
        missing = [name for name, _ in clips if name not in notes.texts]
        for number, name in enumerate(missing):
            echo({"phase": "text", "done": number, "total": len(missing)})
            notes.add(clip=name, text=recognise(out / name))
        _write_list(out / LIST_FILE, clips, notes.texts, language)
    summary["without_text"] = sum(not notes.texts.get(name) for name, _ in clips)
    echo(summary)
    return out / LIST_FILE


def _cut(recording: Recording, out: Path, cutting: SegmentationSettings) -> dict[str, object]:
    """Split one recording and return its note; an unreadable one is noted instead of raised."""
    note: dict[str, Any] = {"recording": str(recording.path), "clips": [], "length_s": 0.0}
    # Read before the audio: if the file changes meanwhile, the next call splits it again.
    note["state"] = _state_of(recording.path)
    try:
        note["length_s"] = audio_facts(recording.path).duration_s
        note["clips"] = [
            [name, round(span.start_s, 3), round(span.end_s, 3)]  # milliseconds are enough to read
            for name, span in cut_recording(recording, out, cutting)
        ]
    except AudioError as error:
        note["fault"] = str(error)
    return note


def _state_of(path: Path) -> list[int]:
    """Return size and modification time, by which an unchanged file is recognised."""
    # Not a hash: recordings can be gigabytes, and this runs at every call.
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _open_notes(out: Path, cutting: SegmentationSettings) -> _CutProgress:
    """Open a new folder, or one whose clips were cut with the same settings."""
    notes = _CutProgress(out / _NOTES_FILE)
    settings = asdict(cutting)
    if not notes.path.exists():
        if out.exists() and any(out.iterdir()):
            raise RunExists(f"{out} holds other files. Choose a new or empty folder.")
        out.mkdir(parents=True, exist_ok=True)
        notes.add(settings=settings)
        return notes
    text = notes.path.read_text(encoding="utf-8", errors="replace")
    for line in text.split("\n"):  # not splitlines(), which also splits at U+2028 within a text
        try:
            notes.take(json.loads(line))
        except ValueError:
            continue  # the torn last line of a process that was killed
    if notes.settings != settings:
        raise RunExists(
            f"{out} holds clips that were cut with other settings ({notes.settings}). Use the same "
            "settings or choose a new folder."
        )
    return notes


def _refuse_odd(cutting: SegmentationSettings) -> None:
    shortest_s, longest_s, pause_s = cutting.shortest_s, cutting.longest_s, cutting.pause_s
    # With room for two shortest clips in the longest one, any speech can be divided within both
    # limits. The 2 s are chosen by hand: shorter clips hold no sentence.
    is_fine = 0 < pause_s < longest_s and shortest_s > 0 and max(2.0, 2 * shortest_s) <= longest_s
    if not is_fine:
        raise DataError(
            f"Clips of {shortest_s:g} to {longest_s:g} s, split at pauses of {pause_s:g} s, are "
            "not possible. The longest clip must be at least 2 s and at least twice the shortest; "
            "the pause must be shorter than the longest clip."
        )


def _write_list(
    path: Path, clips: Sequence[tuple[str, str]], texts: dict[str, str], language: str
) -> None:
    rows = [(name, texts.get(name, ""), speaker, language) for name, speaker in clips]
    write_atomic(path, as_table(rows))


def _sum_up(notes: _CutProgress, recordings: Sequence[Recording], path: Path) -> CutSummary:
    own = [notes.ended[str(recording.path)] for recording in recordings]
    spans = [span for note in own for span in note["clips"]]
    return {
        "list": str(path),
        "clips": len(spans),
        "clips_s": sum(end - start for _, start, end in spans),
        "recordings": len(own),
        "recordings_s": sum(note["length_s"] for note in own),
        "faults": [note["fault"] for note in own if "fault" in note],
        "without_text": 0,
    }
