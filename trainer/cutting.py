"""Cutting: `python -m trainer cut`, long recordings -> a folder of clips with a list of them.

Everything is noted as it is done, so that a cut that ended anywhere goes on where it was.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import soundfile

from trainer.data.headers import AudioError, audio_facts
from trainer.data.recordings import Recording, cut_recording, find_recordings
from trainer.data.rewrite import as_table
from trainer.data.slicing import Cutting
from trainer.durable import append_line, write_durably
from trainer.errors import DataError, RunExists
from trainer.transcription import Transcriber, open_transcriber

LIST_FILE = "list.csv"
_NOTES_FILE = "cutting.jsonl"
_PHASES = {"cut": "Cutting", "text": "Writing the texts"}

Tell = Callable[[dict[str, Any]], None]


@dataclass
class _Notes:
    """What is done already: recordings that were cut to their end, their clips, and texts."""

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def add(self, **note: Any) -> None:
        """Write a note down, and take it in."""
        append_line(self.path, json.dumps(note, ensure_ascii=False))
        self.take(note)

    def take(self, note: dict[str, Any]) -> None:
        """Take a note in."""
        if "settings" in note:
            self.settings = note["settings"]
        elif "recording" in note:
            self.ended[note["recording"]] = note
            for name, *_ in note["clips"]:
                self.texts.pop(name, None)  # What an earlier recording of this name said.
        elif "clip" in note:
            self.texts[note["clip"]] = note["text"]

    def clips(self, recordings: Sequence[Recording]) -> list[tuple[str, str]]:
        """Return the names of all clips with who speaks."""
        return [
            (name, recording.speaker)
            for recording in recordings
            for name, *_ in self.ended[str(recording.path)]["clips"]
        ]


def cut_command(
    parser: argparse.ArgumentParser, argv: Sequence[str], tell: Callable[[str], None]
) -> int:
    """Cut recordings, transcribe their clips if a recogniser is named, and write their list."""
    usual = Cutting()
    add = parser.add_argument
    add("--audio", required=True, metavar="PATH", help="a recording, or a folder of them")
    add("--out", required=True, metavar="FOLDER", help="a new folder, or one that goes on")
    add("--speaker", default="", help="who speaks [the folder a recording lies in]")
    add("--language", default="en", help="what is spoken [en]")
    for name, words in (
        ("shortest", "seconds of the shortest clip"),
        ("longest", "seconds of the longest clip"),
        ("pause", "seconds of the shortest pause to cut in"),
    ):
        default = getattr(usual, f"{name}_s")
        add(f"--{name}", type=float, default=default, metavar="S", help=f"{words} [{default:g}]")
    whisper = "write the texts with this Whisper model: a folder, or a name such as large-v3"
    add("--whisper", default="", metavar="MODEL", help=whisper)
    add("--lines", action="store_true", help="print JSON lines for programs")
    args = parser.parse_args(argv)
    out = Path(args.out).absolute()
    try:
        cut_recordings(
            find_recordings(Path(args.audio), args.speaker, leave_out=out),
            out,
            Cutting(args.shortest, args.longest, args.pause),
            language=args.language,
            open_recogniser=(
                partial(open_transcriber, args.whisper, args.language) if args.whisper else None
            ),
            tell=lambda line: tell(json.dumps(line) if args.lines else _in_words(line)),
        )
    except (OSError, soundfile.LibsndfileError) as error:
        raise DataError(
            f"The cut broke off: {error}. What is cut is kept; free some space or mend the path, "
            "and give the same command again."
        ) from None
    return 0


def cut_recordings(
    recordings: Sequence[Recording],
    out: Path,
    cutting: Cutting,
    *,
    language: str,
    open_recogniser: Callable[[], Transcriber] | None,
    tell: Tell,
) -> Path:
    """Cut recordings into clips in a folder, and return the list that it then holds.

    Raises:
        RunExists: the folder holds something else, or clips that were cut otherwise.
        DataError: the lengths make no sense, or no recording gave a clip.
        MissingDependency, CheckpointError: there is no such recogniser.
    """
    _refuse_odd(cutting)
    # Before an hour is cut, it is known whether the texts can be written.
    recognise = open_recogniser() if open_recogniser else None
    notes = _open_notes(out, cutting)
    for number, recording in enumerate(recordings):
        tell({"phase": "cut", "done": number, "total": len(recordings)})
        known = notes.ended.get(str(recording.path), {})
        if known.get("state") != _state_of(recording.path):
            notes.add(**_cut(recording, out, cutting))
    clips = notes.clips(recordings)
    told = _sum_up(notes, recordings, out / LIST_FILE)
    if not clips:
        reason = next(iter(told["faults"]), "Nobody speaks in them.")
        raise DataError(f"No clip could be cut. {reason} Give recordings of speech.")
    _write_list(out / LIST_FILE, clips, notes.texts, language)
    if recognise is not None:
        missing = [name for name, _ in clips if name not in notes.texts]
        for number, name in enumerate(missing):
            tell({"phase": "text", "done": number, "total": len(missing)})
            notes.add(clip=name, text=recognise(out / name))
        _write_list(out / LIST_FILE, clips, notes.texts, language)
    empty = sum(not notes.texts.get(name) for name, _ in clips)
    tell(told | {"without_text": empty})
    return out / LIST_FILE


def _cut(recording: Recording, out: Path, cutting: Cutting) -> dict[str, Any]:
    """Cut one recording and return the note on it; one that cannot be read is told, not raised."""
    note: dict[str, Any] = {"recording": str(recording.path), "clips": [], "length_s": 0.0}
    note["state"] = _state_of(recording.path)
    try:
        note["length_s"] = audio_facts(recording.path).duration_s
        note["clips"] = [
            [name, round(span.start_s, 3), round(span.end_s, 3)]
            for name, span in cut_recording(recording, out, cutting)
        ]
    except AudioError as error:
        note["fault"] = str(error)
    return note


def _state_of(path: Path) -> list[int]:
    """Return size and time of change, by which a file is known to be the same."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _open_notes(out: Path, cutting: Cutting) -> _Notes:
    """Open a new folder, or one that was cut in the same way."""
    notes = _Notes(out / _NOTES_FILE)
    settings = asdict(cutting)
    if not notes.path.exists():
        if out.exists() and any(out.iterdir()):
            raise RunExists(f"{out} holds other files. Cut into a folder that is new.")
        out.mkdir(parents=True, exist_ok=True)
        notes.add(settings=settings)
        return notes
    text = notes.path.read_text(encoding="utf-8", errors="replace")
    for line in text.split("\n"):  # Not splitlines: a text may hold U+2028.
        try:
            notes.take(json.loads(line))
        except ValueError:
            continue  # The last line of a cut that was killed.
    if notes.settings != settings:
        raise RunExists(
            f"{out} was cut with other lengths ({notes.settings}). Give the same ones, or a folder "
            "that is new."
        )
    return notes


def _refuse_odd(cutting: Cutting) -> None:
    shortest_s, longest_s, pause_s = cutting.shortest_s, cutting.longest_s, cutting.pause_s
    is_fine = 0 < pause_s < longest_s and shortest_s > 0 and max(2.0, 2 * shortest_s) <= longest_s
    if not is_fine:
        raise DataError(
            f"Clips of {shortest_s:g} to {longest_s:g} s, cut in pauses of {pause_s:g} s, cannot "
            "be. The longest must be at least 2 s and twice the shortest, and pauses are shorter "
            "than clips."
        )


def _write_list(
    path: Path, clips: Sequence[tuple[str, str]], texts: dict[str, str], language: str
) -> None:
    rows = [(name, texts.get(name, ""), speaker, language) for name, speaker in clips]
    write_durably(path, as_table(rows))


def _sum_up(notes: _Notes, recordings: Sequence[Recording], path: Path) -> dict[str, Any]:
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
        f"minutes; the rest is silence or too short. The list: {line['list']}"
    )
    if line["without_text"]:
        words.append(
            f"{line['without_text']} clips have no text yet. Write it on the Data tab or into the "
            "list, or name a recogniser with --whisper."
        )
    return "\n".join(words)
