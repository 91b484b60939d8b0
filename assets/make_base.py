"""Make the base checkpoint in assets/base: a small FastSpeech 2 of eight other synthetic voices.

    python -m assets.make_base corpus --out /tmp/base-corpus
    python -m assets.make_base train --corpus /tmp/base-corpus --run /tmp/base-run

None of its voices and none of its sentences is in the demo corpus, so that fine-tuning on the demo
is what it says. The corpus stays in a scratch folder; only the checkpoint is kept.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from assets.engines import Voice, engine_versions
from assets.make_demo import ASSETS, SEED, SENTENCES, Row, read_sentences, speak_clip, write_csv
from trainer.core.metrics import TRAIN_LOSS, VAL

READERS_PER_SENTENCE = 3
EVAL_EVERY = 15
TRAINING = (
    *("--family", "fastspeech2", "--size", "small", "--tokens", "characters"),
    *("--batch-size", "8", "--preview-every", "never"),
)

BASE_VOICES = (
    Voice("alder", "flite", "awb"),
    Voice("birch", "kokoro", "jf_alpha"),
    Voice("cedar", "flite", "rms"),
    Voice("elm", "kokoro", "jf_gongitsune"),
    Voice("fern", "kokoro", "jf_nezumi:1.6+jf_alpha:-0.6"),
    Voice("hazel", "kokoro", "jf_nezumi"),
    Voice("linden", "flite", "slt"),
    Voice("maple", "kokoro", "jf_tebukuro"),
)


def main() -> None:
    """Read the command line and make the corpus or the checkpoint."""
    parser = argparse.ArgumentParser(description="Make the base checkpoint.")
    commands = parser.add_subparsers(dest="command", required=True)
    corpus = commands.add_parser("corpus", help="speak the base corpus into a scratch folder")
    corpus.add_argument("--out", type=Path, required=True)
    train = commands.add_parser("train", help="train on it and export the checkpoint")
    train.add_argument("--corpus", type=Path, required=True)
    train.add_argument("--run", type=Path, required=True)
    train.add_argument("--steps", type=int, default=4000)
    train.add_argument("--out", type=Path, default=ASSETS / "base")
    options = parser.parse_args()
    if options.command == "corpus":
        make_corpus(options.out)
    else:
        train_base(options.corpus, options.run, options.steps, options.out)


def make_corpus(folder: Path) -> None:
    """Speak every base sentence with several of the voices; every fifteenth is for validation."""
    texts = read_sentences(SENTENCES / "base.txt")
    rows: dict[str, list[Row]] = {"train": [], "eval": []}
    for number, text in enumerate(texts):
        split = "eval" if number % EVAL_EVERY == EVAL_EVERY - 1 else "train"
        for voice in readers_of(number):
            name = f"clips/{voice.speaker}/{number:03d}.wav"
            rows[split].append(speak_clip(folder, name, voice, text, SEED + number))
    for split, spoken in rows.items():
        write_csv(folder / f"{split}.csv", spoken)
    seconds = sum(row.duration_s for spoken in rows.values() for row in spoken)
    about = {
        "engines": engine_versions({voice.engine for voice in BASE_VOICES}),
        "voices": [asdict(voice) for voice in BASE_VOICES],
        "clips": {split: len(spoken) for split, spoken in rows.items()},
        "minutes": round(seconds / 60, 1),
    }
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def readers_of(number: int) -> list[Voice]:
    """Return the voices that read a sentence; the groups change, so that no two voices pair up."""
    count = len(BASE_VOICES)
    stride = (1, 3, 5, 7)[number // count % 4]
    return [BASE_VOICES[(number + k * stride) % count] for k in range(READERS_PER_SENTENCE)]


def train_base(corpus: Path, run: Path, steps: int, out: Path) -> None:
    """Train with the command line, export the weights, and write down how it was done."""
    train = trainer_command("train", "--run", run, "--train-csv", corpus / "train.csv")
    train += ["--eval-csv", str(corpus / "eval.csv"), "--steps", str(steps), *TRAINING]
    started = time.monotonic()
    subprocess.run(train, check=True)
    wall_s = time.monotonic() - started
    if out.exists():
        shutil.rmtree(out)
    subprocess.run(trainer_command("export", run, "--out", out), check=True)
    about = {
        "commands": ["python -m assets.make_base corpus --out C"]
        + [f"python -m assets.make_base train --corpus C --run R --steps {steps}"],
        "training": ["python", "-m", "trainer", "train", *TRAINING, "--steps", str(steps)],
        "wall_s": round(wall_s),
        "losses": last_losses(run),
        "corpus": json.loads((corpus / "about.json").read_text(encoding="utf-8")),
        "machine": describe_machine(),
    }
    (out / "about.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def trainer_command(*words: str | Path) -> list[str]:
    """Return the command that runs Timbre's own command line with this interpreter."""
    return [sys.executable, "-m", "trainer", *(str(word) for word in words)]


def last_losses(run: Path) -> dict[str, float]:
    """Return the newest value of every loss and validation metric of a run."""
    done = subprocess.run(
        trainer_command("metrics", run, "--json"), check=True, capture_output=True, text=True
    )
    tables: dict[str, dict[str, list[float | None]]] = json.loads(done.stdout)
    newest = {}
    for name, column in (item for table in tables.values() for item in table.items()):
        known = [value for value in column if value is not None]
        if known and name.startswith((TRAIN_LOSS, VAL)):
            newest[name] = round(known[-1], 4)
    return newest


def describe_machine() -> dict[str, str]:
    """Say on what a measurement was made."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names: Sequence[str] = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


if __name__ == "__main__":
    main()
