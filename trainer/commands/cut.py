"""Implement `python -m trainer cut`: split long recordings into a folder of clips with a list.

Every finished part is written to a journal, so a cut that was interrupted continues where it
stopped.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import soundfile

from trainer.core.atomic_io import append_line, write_atomic
from trainer.core.errors import DataError, RunExists
from trainer.data.audio.headers import AudioError, audio_facts
from trainer.data.lists.rewrite import as_table
from trainer.data.recordings.segmentation import Recording, cut_recording, find_recordings
from trainer.data.recordings.silence import SegmentationSettings
from trainer.inference.transcription import Transcriber, open_transcriber

LIST_FILE = "list.csv"
_NOTES_FILE = "cutting.jsonl"  # the journal; JSON lines, so that a torn last line harms no other
_PHASES = {"cut": "Cutting", "text": "Writing the texts"}

Echo = Callable[[dict[str, Any]], None]


@dataclass
class _CutProgress:
    """The journal of finished work: recordings that were cut completely, their clips and texts."""

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def add(self, **note: Any) -> None:
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


def cut_command(
    parser: argparse.ArgumentParser, argv: Sequence[str], echo: Callable[[str], None]
) -> int:
    """Split recordings, transcribe the clips if a recogniser is named, and write their list."""
    usual = SegmentationSettings()
    add = parser.add_argument
    add("--audio", required=True, metavar="PATH", help="a recording, or a folder of them")
    add("--out", required=True, metavar="FOLDER", help="a new folder, or one to continue in")
    add("--speaker", default="", help="the speaker's name [the folder that holds the recording]")
    add("--language", default="en", help="the language spoken [en]")
    for name, words in (
        ("shortest", "minimum length of a clip in seconds"),
        ("longest", "maximum length of a clip in seconds"),
        ("pause", "minimum length in seconds of a pause to split at"),
    ):
        default = getattr(usual, f"{name}_s")
        add(f"--{name}", type=float, default=default, metavar="S", help=f"{words} [{default:g}]")
    whisper = "transcribe with this Whisper model: a folder, or a name such as large-v3"
    add("--whisper", default="", metavar="MODEL", help=whisper)
    add("--lines", action="store_true", help="print JSON lines for programs")
    args = parser.parse_args(argv)
    out = Path(args.out).absolute()
    try:
        cut_recordings(
            find_recordings(Path(args.audio), args.speaker, leave_out=out),
            out,
            SegmentationSettings(args.shortest, args.longest, args.pause),
            language=args.language,
            open_recogniser=(
                partial(open_transcriber, args.whisper, args.language) if args.whisper else None
            ),
            echo=lambda line: echo(json.dumps(line) if args.lines else _in_words(line)),
        )
    except (OSError, soundfile.LibsndfileError) as error:
        raise DataError(
            f"The split was interrupted: {error}. Finished clips are kept; free some disk space or "
            "fix the path, then run the same command again."
        ) from None
    return 0


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
    told = _sum_up(notes, recordings, out / LIST_FILE)
    if not clips:
        reason = next(iter(told["faults"]), "They contain no speech.")
        raise DataError(f"The recordings yielded no clips. {reason} Choose recordings of speech.")
    # Written before the texts too: if transcription fails, the list is there to fill in by hand.
    _write_list(out / LIST_FILE, clips, notes.texts, language)
    if recognise is not None:
        missing = [name for name, _ in clips if name not in notes.texts]
        for number, name in enumerate(missing):
            echo({"phase": "text", "done": number, "total": len(missing)})
            notes.add(clip=name, text=recognise(out / name))
        _write_list(out / LIST_FILE, clips, notes.texts, language)
    empty = sum(not notes.texts.get(name) for name, _ in clips)
    echo(told | {"without_text": empty})
    return out / LIST_FILE


def _cut(recording: Recording, out: Path, cutting: SegmentationSettings) -> dict[str, Any]:
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


def _sum_up(notes: _CutProgress, recordings: Sequence[Recording], path: Path) -> dict[str, Any]:
    own = [notes.ended[str(recording.path)] for recording in recordings]
    spans = [span for note in own for span in note["clips"]]
    return {
        "list": str(path),
        "clips": len(spans),
        "clips_s": sum(end - start for _, start, end in spans),
        "recordings": len(own),
        "recordings_s": sum(note["length_s"] for note in own),
        "faults": [note["fault"] for note in own if "fault" in note],
    }


def _in_words(line: dict[str, Any]) -> str:
    if "phase" in line:
        return f"{_PHASES[line['phase']]} {line['done']}/{line['total']}"
    words = [f"Not used: {fault}" for fault in line["faults"]]
    words.append(
        f"{line['clips']} clips, {line['clips_s'] / 60:.1f} of {line['recordings_s'] / 60:.1f} "
        f"minutes; the rest is silence or too short. Clip list: {line['list']}"
    )
    if line["without_text"]:
        words.append(
            f"{line['without_text']} clips have no text yet. Type it on the Data tab or in the "
            "list, or transcribe them with --whisper."
        )
    return "\n".join(words)
