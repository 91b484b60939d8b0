"""`synthesize`: synthesize speech with a checkpoint of a run."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.commands._command import Command, Echo, add_run


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    started = time.monotonic()  # before the slow imports, because a listener waits for them too
    add_run(parser, "the folder of a run or of an exported FastSpeech 2")
    parser.add_argument("--text", required=True, action="append", help="the text; may be repeated")
    one_each = "the WAV file to write; a folder for several texts or checkpoints"
    parser.add_argument("--out", required=True, metavar="X.wav", help=one_each)
    streams = "write audio as it is generated; with --out - to standard output"
    parser.add_argument("--stream", action="store_true", help=streams)
    parser.add_argument("--speaker", default="", help="name of the speaker [the first one]")
    which = "best, last, a step or base; several separated by commas [best]"
    parser.add_argument("--checkpoint", default="best", help=which)
    where = "auto (a GPU with enough free memory, or the CPU), cpu, cuda or cuda:1 [auto]"
    parser.add_argument("--device", default="auto", help=where)
    args = parser.parse_args(argv)
    is_one = len(args.text) == 1 and "," not in args.checkpoint  # else --out is a folder
    if args.stream:
        if not is_one:
            parser.error("--stream takes one text and one checkpoint")
        args.text = args.text[0]
        return _stream(args, started)
    if not is_one:
        return _speak_takes(args, echo)
    args.text = args.text[0]
    from trainer.data.audio.audio_io import write_wav
    from trainer.inference.synthesis import find_voice, speak

    if args.out == "-":
        parser.error("--out - works only with --stream; add --stream or give a file name")
    chosen = {"speaker": args.speaker, "which": args.checkpoint, "device": args.device}
    speech = speak(find_voice(args.run), args.text, **chosen)
    write_wav(Path(args.out), speech.wave, speech.sample_rate)
    echo(f"{args.out}: {len(speech.wave) / speech.sample_rate:.2f} s")
    return 0


def _speak_takes(args: argparse.Namespace, echo: Echo) -> int:
    """Synthesize every text with every checkpoint into a folder: best-0.wav, best-1.wav, ..."""
    from trainer.data.audio.audio_io import write_wav
    from trainer.inference.synthesis import find_voice, speak_takes

    folder, checkpoints = Path(args.out), args.checkpoint.split(",")
    folder.mkdir(parents=True, exist_ok=True)
    voice, chosen = find_voice(args.run), {"speaker": args.speaker, "device": args.device}
    takes = speak_takes(voice, args.text, checkpoints, **chosen)
    for checkpoint, number, speech in takes:
        path = folder / f"{checkpoint}-{number}.wav"
        write_wav(path, speech.wave, speech.sample_rate)
        echo(f"{path}: {len(speech.wave) / speech.sample_rate:.2f} s")
    return 0


def _stream(args: argparse.Namespace, started: float) -> int:
    """Write speech as it is generated, and report on stderr how soon it started."""
    from trainer.data.audio.live_wav import write_live
    from trainer.inference.synthesis import find_voice, move_to_device, open_voice, speak_pieces

    family, model, facts, _ = open_voice(find_voice(args.run), args.checkpoint)
    move_to_device(model, args.device)
    loaded = time.monotonic()  # loading is reported apart: a server loads a voice once
    pieces = speak_pieces(family, model, facts, args.text, args.speaker)
    waves = ((speech.wave, speech.sample_rate) for speech in pieces)
    spoken_s = 0.0
    for seconds in write_live(args.out, waves):
        if not spoken_s:
            first = time.monotonic()
            sys.stderr.write(
                f"First sound after {first - started:.2f} s, of which {loaded - started:.2f} s for "
                "loading the model.\n"
            )
        spoken_s += seconds
    whole = time.monotonic() - started
    sys.stderr.write(f"{args.out}: {spoken_s:.2f} s of speech after {whole:.2f} s.\n")
    return 0


COMMAND = Command("synthesize", "synthesize speech with a checkpoint of a run", 80, _run)
