"""`cut`: split long recordings into clips and transcribe them."""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.commands._command import Command, Echo
from trainer.core.errors import DataError

if TYPE_CHECKING:
    from trainer.inference.recording_cuts import CutPhase, CutSummary

_PHASES = {"cut": "Cutting", "text": "Writing the texts"}


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    import soundfile

    from trainer.data.recordings.segmentation import find_recordings
    from trainer.data.recordings.silence import SegmentationSettings
    from trainer.inference.recording_cuts import cut_recordings
    from trainer.inference.transcription import open_transcriber

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


def _in_words(line: "CutPhase | CutSummary") -> str:
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


COMMAND = Command("cut", "split long recordings into clips and transcribe them", 20, _run)
