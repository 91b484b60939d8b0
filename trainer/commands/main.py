"""Implement the command line: python -m trainer check | train | resume | stop | status | ..."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from trainer.commands.event_text import describe_event, shown_progress
from trainer.commands.usage import program, top_parser
from trainer.core.child_process import SAFE_PATH, child_environment, start_child
from trainer.core.errors import TimbreError, refusal_of_disk
from trainer.core.events import Event, PhaseChanged, StepDone
from trainer.core.run_config import absolute_path
from trainer.core.types import Clip
from trainer.data.lists.ledger import escape_formula
from trainer.runs.points import csv_texts, json_texts
from trainer.runs.run import Run

COMMANDS = {  # in the order in which a new user meets them; --help keeps it
    "check": "read CSVs and list every clip and every problem",
    "cut": "split long recordings into clips and transcribe them",
    "train": "create a run folder and train it here",
    "resume": "start or continue a run",
    "stop": "ask a run to save and stop",
    "status": "show the state of a run",
    "metrics": "print the metrics of a run as JSON or CSV",
    "synthesize": "synthesize speech with a checkpoint of a run",
    "export": "write the weights of a run for use elsewhere",
    "launch": "train a run in the background, here or on a Slurm cluster",
    "race": "compare optimizers on your clips under equal conditions",
    "find-lr": "find a learning rate with one short run",
    "estimate": "estimate the memory of a run before it starts",
    "measure": "measure the speed and memory of each optimization on this machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a TimbreError is printed as a sentence."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = top_parser(COMMANDS)
    if not argv or argv[0] in ("-h", "--help"):
        parser.print_help()
        return 0 if argv else 2  # nothing was asked for: a usage error, as argparse exits
    if argv[0] == "--version":
        parser.parse_args(argv)
    if argv[0] not in COMMANDS:
        parser.error(f"'{argv[0]}' is not a command; use one of: {', '.join(COMMANDS)}")
    try:
        return _HANDLERS[argv[0]](argv[1:])
    except TimbreError as error:
        print(f"Error: {error}", file=sys.stderr)  # stdout may be JSON for another program
        return error.exit_code  # lets a script tell a bad setting from a failed run
    except BrokenPipeError:
        return 0  # the reader, such as `head`, has seen enough
    except OSError as error:  # not from training, which logs its own failures
        if not (text := refusal_of_disk(error)):
            raise  # not about a file: a bug, and its traceback is wanted
        print(f"Error: {text}", file=sys.stderr)
        return 1


def _parser(command: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"{program()} {command}", description=COMMANDS[command], allow_abbrev=False
    )  # no abbreviations: a new option must not change what an old script means


def _run_parser(command: str, what: str = "the run folder") -> argparse.ArgumentParser:
    parser = _parser(command)
    parser.add_argument("run", metavar="DIR", help=what)
    return parser


def _check(argv: list[str]) -> int:  # imports inside commands: torch takes seconds to import
    from trainer.config.cli_flags import data_from_args
    from trainer.data.lists.manifest import read_manifest

    parser = _parser("check")
    parser.add_argument("--family", default="", help="also compute this family's features")
    parser.add_argument("--base", default="", help="the family's base checkpoint")
    parser.add_argument("--json", action="store_true", help="print JSON")
    data, args = data_from_args(parser, argv)
    manifest = read_manifest(data, progress=shown_progress())
    unusable, costs, alphabet = {}, [], {}
    if args.family:
        unusable, costs = _judge_for(args.family, args.base, manifest.clips)
        alphabet = _charset_for(args.family, args.base, manifest.clips)
    usable = [clip for clip in manifest.train if clip.id not in unusable]
    if args.json:
        values = manifest.summary() | {
            "clips": [asdict(clip) for clip in manifest.clips if clip.id not in unusable],
            "problems": [asdict(problem) for problem in manifest.problems],
            "unusable": unusable,
            "left_out": _left_out(manifest.clips, unusable),
            "language_costs": costs,
            "alphabet": alphabet,
            "notes": list(manifest.notes),
        }
        print(json.dumps(values, indent=2, ensure_ascii=False))
        return 0 if usable else 1  # 1: there is nothing to train on
    for source in manifest.sources:  # first how each file was read, which explains most problems
        print(f"{source.path}: {source.num_rows} rows, {source.dialect}, {source.encoding}")
    for note in manifest.notes:
        print(f"Note: {note}")
    for problem in manifest.problems:
        print(f"Problem: {problem}")
    for clip in manifest.clips:
        if clip.id in unusable:
            print(f"Problem: Line {clip.line} of {clip.source}: {unusable[clip.id]}")
    for cost in costs:
        print(_describe_cost(cost))
    for letter in alphabet.get("letters", []):
        where = f"{letter['clips']} clips, {letter['minutes']:.1f} minutes"
        print(f"Unknown character: {letter['letter']} ({letter['name']}), in {where}")
    kept = [clip for clip in manifest.clips if clip.id not in unusable]
    minutes = sum(clip.duration_s for clip in kept) / 60
    print(
        f"{len(kept)} clips are usable ({minutes:.1f} minutes, {len(usable)} train, "
        f"{len(kept) - len(usable)} val), {len(manifest.problems) + len(unusable)} rows have "
        "problems."
    )
    return 0 if usable else 1


def _left_out(clips: Sequence[Clip], unusable: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row for each clip that a family cannot use."""
    return [
        {
            "line": clip.line, "source": clip.source, "text": clip.text,
            "minutes": clip.duration_s / 60, "reason": unusable[clip.id],
        }
        for clip in clips
        if clip.id in unusable
    ]  # fmt: skip


def _describe_cost(cost: dict[str, Any]) -> str:
    """Describe how many tokens a language adds to the vocabulary."""
    letters = cost["unknown_characters"]
    added = len(letters) + cost["new_merges"] + cost["needs_language_token"]
    return (
        # 120 characters (chosen by hand) fit a terminal; Chinese text can bring thousands.
        f"Language {cost['language']}: {added} new tokens ({' '.join(letters)[:120]}); "
        f"{cost['clips_with_unknown']} of {cost['clips']} clips need them; "
        f"{cost['tokens_per_character_after']:.2f} tokens per character."
    )


def _judge_for(
    family_name: str, base_name: str, clips: Sequence[Clip]
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return why clips are unusable for a family, by clip id, and the costs of new languages."""
    from trainer.config.resolve import find_family
    from trainer.data.features.cache import FeatureCache, default_cache_folder
    from trainer.data.features.dataset import loader_workers
    from trainer.data.lists.listing import no_progress

    family = find_family(family_name)
    base = Path(absolute_path(base_name)) if base_name else None
    featurizer = family.featurizer(base, family.options())
    cache = FeatureCache(default_cache_folder() / family.name)
    workers = loader_workers(None)
    features, unusable = cache.collect(clips, featurizer, workers=workers, progress=no_progress)
    usable = [clip for clip in clips if clip.id in features]
    if not usable:  # a survey needs at least one clip
        return unusable, []
    corpus = family.survey(features, usable, family.options(), base, no_progress)
    return unusable | corpus.unusable, corpus.facts.get("language_costs", [])


def _charset_for(family_name: str, base_name: str, clips: Sequence[Clip]) -> dict[str, Any]:
    """Return the characters that a family does not know; see `describe_charset_coverage`."""
    from trainer.config.resolve import find_family
    from trainer.data.text.charset_coverage import describe_charset_coverage

    family = find_family(family_name)
    base = Path(absolute_path(base_name)) if base_name else None
    return describe_charset_coverage(family, base, family.options(), clips)


def _train(argv: list[str]) -> int:
    from trainer.config.cli_flags import config_from_args, refuse_missing_data
    from trainer.config.resolve import with_absolute_paths
    from trainer.training.assemble import check_before_start

    parser = _parser("train")
    parser.add_argument("--run", required=True, metavar="DIR", help="the new run folder")
    config, args = config_from_args(parser, argv)
    refuse_missing_data(config)
    config = with_absolute_paths(config)
    # Before the folder exists, so that a corrected command can use its name.
    check_before_start(config)
    run = Run.create(args.run, config)
    return _continue(run)


def _resume(argv: list[str]) -> int:
    parser = _run_parser("resume")
    more = "train this many more steps than planned, or than where it stopped early"
    parser.add_argument("--more-steps", type=int, metavar="N", help=more)
    sizes = "number of processes from now on, one per GPU; steps keep the same clips"
    parser.add_argument("--gpus", type=int, metavar="N", help=sizes)
    change = "change an option, such as training.batch_size=4; prints what that means for the run"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=change)
    args = parser.parse_args(argv)
    run = Run.open(args.run)
    if args.gpus is not None:
        run.choose_processes(args.gpus)
    if args.set:
        _change_options(run, args.set)
    if args.more_steps is not None:
        print(f"{run.name} now ends at step {run.request_more(args.more_steps)}.")
        if run.is_owned():  # no second process may train it
            return 0  # the process that trains it reads the request
    return _continue(run)


def _change_options(run: Run, words: Sequence[str]) -> None:
    """Apply options that change at a resume and print how much each of them matters."""
    from trainer.checkpoints.compatibility import (
        changed_config,
        compare_configs,
        read_changes,
        refuse_differences,
        refuse_processes,
    )
    from trainer.config.resolve import resolve

    changes = read_changes(run.current_config, words)
    refuse_processes(changes)  # `--gpus` checks that the step can be shared evenly
    config = changed_config(run.current_config, changes)
    resolve(config)  # raises for unknown names and bad values; the result is not needed
    differences = compare_configs(run.current_config.to_json(), config.to_json())
    refuse_differences(differences)
    for difference in differences:
        print(f"{difference}: {difference.kind}")
    run.change_options(changes)  # last: nothing is stored if anything above was refused


def _continue(run: Run) -> int:
    """Train in this process, or replace it by torchrun, which starts one process per GPU."""
    import os

    from trainer.worker.supervisor import report

    is_one_of_several = "WORLD_SIZE" in os.environ
    snapshot = run.snapshot()
    if not is_one_of_several:  # a rank's parent is torchrun, not the supervisor
        report(run.folder, snapshot.num_processes)
    if snapshot.num_processes > 1 and not is_one_of_several:
        environment = child_environment() | SAFE_PATH
        if os.name == "nt":  # execv on Windows returns to the shell before torchrun has ended
            return start_child(run.torchrun(), environment=environment).wait()
        os.execve(sys.executable, run.torchrun(), environment)  # keeps the supervised PID
    from trainer.worker.training_process import continue_run

    listen = _Printer() if sys.stdout.isatty() or "TIMBRE_PROGRESS" in os.environ else None
    return continue_run(run, listen, snapshot)


def _stop(argv: list[str]) -> int:
    parser = _run_parser("stop")
    parser.add_argument("--wait", action="store_true", help="wait until the run has stopped")
    parser.add_argument("--now", action="store_true", help="kill it at once, without saving")
    args = parser.parse_args(argv)
    run = Run.open(args.run)
    if not run.status().is_active:
        print(f"The run {run.name} is not training ({run.status().state}).")
        return 0
    if args.now:
        run.kill()  # for a run that hangs and cannot answer a request
        print(f"{run.name} was killed; resume continues from its last checkpoint.")
    else:
        run.request("stop")
        print(f"Asked {run.name} to save and stop after the current step.")
    if args.wait:
        status = run.wait()
        print(f"{run.name}: {status.state} at step {status.step}.")
    return 0


def _status(argv: list[str]) -> int:
    parser = _run_parser("status")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    status = Run.open(args.run).status()
    if args.json:
        print(json.dumps(asdict(status), indent=2, ensure_ascii=False))
        return 0
    print(f"{status.name}: {status.state}, step {status.step} of {status.total_steps}")
    if status.phase:
        print(f"  {status.phase} {status.phase_done}/{status.phase_total}")
    for name in ("train/loss", "val/loss", "perf/s_per_step", "perf/memory_gib"):
        if name in status.metrics:
            print(f"  {name} {status.metrics[name]:.5g}")
    for name, state in status.optimizations.items():
        print(f"  {name}: {'on' if state['on'] else 'off'}, {state['detail']}")
    if status.reason:
        print(f"  {status.reason} {status.remedy}")
    return 0


def _metrics(argv: list[str]) -> int:
    parser = _run_parser("metrics")
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--json", action="store_true", help="one JSON object of columns")
    form.add_argument("--csv", action="store_true", help="one row per step")
    args = parser.parse_args(argv)
    series = Run.open(args.run).series()
    tables = {"steps": series.steps, "validations": series.validations}
    if args.json:
        texts = chain(json_texts(tables), "\n")
    else:  # a spreadsheet must not take a name for a formula
        texts = csv_texts(series.steps, series.validations, escape_formula)
    for text in texts:
        sys.stdout.write(text)
    return 0


def _synthesize(argv: list[str]) -> int:
    started = time.monotonic()  # before the slow imports, because a listener waits for them too
    parser = _run_parser("synthesize", "the folder of a run or of an exported FastSpeech 2")
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
        return _speak_takes(args)
    args.text = args.text[0]
    from trainer.data.audio.audio_io import write_wav
    from trainer.inference.synthesis import find_voice, speak

    if args.out == "-":
        parser.error("--out - works only with --stream; add --stream or give a file name")
    chosen = {"speaker": args.speaker, "which": args.checkpoint, "device": args.device}
    speech = speak(find_voice(args.run), args.text, **chosen)
    write_wav(Path(args.out), speech.wave, speech.sample_rate)
    print(f"{args.out}: {len(speech.wave) / speech.sample_rate:.2f} s")
    return 0


def _speak_takes(args: argparse.Namespace) -> int:
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
        print(f"{path}: {len(speech.wave) / speech.sample_rate:.2f} s", flush=True)
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
            print(
                f"First sound after {first - started:.2f} s, of which {loaded - started:.2f} s for "
                "loading the model.",
                file=sys.stderr,
            )
        spoken_s += seconds
    whole = time.monotonic() - started
    print(f"{args.out}: {spoken_s:.2f} s of speech after {whole:.2f} s.", file=sys.stderr)
    return 0


def _export(argv: list[str]) -> int:
    from trainer.inference.synthesis import export_voice

    parser = _run_parser("export")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="the new folder")
    parser.add_argument("--checkpoint", default="best", help="best, last or a step [best]")
    parser.add_argument("--bf16", action="store_true", help="write bf16 weights, half the size")
    args = parser.parse_args(argv)
    run, out = Run.open(args.run), Path(args.out)
    folder = export_voice(run, out, which=args.checkpoint, bf16=args.bf16)
    print(f"Wrote {', '.join(sorted(path.name for path in folder.iterdir()))} to {folder}.")
    return 0


def _launch(argv: list[str]) -> int:
    from trainer.commands.launch import launch_command

    return launch_command(_parser("launch"), argv, _echo)


def _race(argv: list[str]) -> int:
    from trainer.commands.race import race_command

    return race_command(_parser("race"), argv, _echo)


def _cut(argv: list[str]) -> int:
    from trainer.commands.cut import cut_command

    return cut_command(_parser("cut"), argv, _echo)


def _estimate(argv: list[str]) -> int:
    from trainer.commands.estimate import estimate_command

    return estimate_command(_parser("estimate"), argv, _echo)


def _measure(argv: list[str]) -> int:
    from trainer.commands.measure import measure_command

    return measure_command(_parser("measure"), argv, _echo)


def _find_lr(argv: list[str]) -> int:
    from trainer.profiling.lr_finder import find_lr_command

    return find_lr_command(_parser("find-lr"), argv, _echo)


def _echo(text: str) -> None:
    print(text, flush=True)


class _Printer:
    """Prints a run's events to a terminal, at most one step every two seconds."""

    def __init__(self) -> None:
        self._printed_at = 0.0

    def __call__(self, event: Event) -> None:
        text = describe_event(event)
        is_frequent = isinstance(event, StepDone | PhaseChanged)
        # Two seconds (chosen by hand): readable while steps take milliseconds. Rare events always
        # show.
        if text is None or (is_frequent and time.monotonic() - self._printed_at < 2.0):
            return
        self._printed_at = time.monotonic() if is_frequent else self._printed_at
        print(text, flush=True)


_HANDLERS: dict[str, Callable[[list[str]], int]] = {
    "check": _check,
    "cut": _cut,
    "train": _train,
    "resume": _resume,
    "stop": _stop,
    "status": _status,
    "metrics": _metrics,
    "synthesize": _synthesize,
    "export": _export,
    "launch": _launch,
    "race": _race,
    "find-lr": _find_lr,
    "estimate": _estimate,
    "measure": _measure,
}
