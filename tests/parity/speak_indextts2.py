"""Train IndexTTS-2 with previews that the original package speaks, all weights small and random.

Usage, from the root of the repository, with the original in an environment of its own (see
compare_indextts2.py) that has what its inference needs:

    indextts/bin/python -m pip install omegaconf munch json5 modelscope librosa \
        descript-audiotools WeTextProcessing
    PYTHONPATH=. python tests/parity/speak_indextts2.py --upstream PATH --python PATH

Shows that every line of the road runs: a preview at each step of a run, and a sentence spoken with
a checkpoint afterwards, both through s2mel and vocoder; then a Notice that names a file taken away.
Random weights make noise: the sound proves nothing but its length and that it is finite.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tests.helpers.indextts2 import make_bpe, write_arrays, write_manifest
from trainer.core.events import EventLog, Notice, PreviewMade
from trainer.models.indextts2.checkpoint.base_folder import config_of
from trainer.models.indextts2.checkpoint.export import write_published
from trainer.models.indextts2.network.gpt import UnifiedVoice
from trainer.models.indextts2.network.sizes import ConformerSizes, Sizes

LAYOUT = Path(__file__).with_name("_indextts2_layout.py")
REFERENCE = Path(__file__).parents[2] / "assets" / "demo"
TEXTS = ["text zero", "text one and two", "to be kept", "be text"]


def main() -> None:
    """Do both runs and tell what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--upstream", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TIMBRE_CACHE"] = str(folder / "cache")
        os.environ["PYTHONPATH"] = str(arguments.upstream.resolve())
        checkpoints = folder / "checkpoints"
        python = str(arguments.python.absolute())
        subprocess.run([python, str(LAYOUT), str(checkpoints)], check=True)
        sizes = write_base(folder / "base")
        reference = next(REFERENCE.rglob("*.ogg"))
        words = [
            "train", "--family", "indextts2", "--base", str(folder / "base"),
            "--train-csv", str(write_rows(folder, "train", 4, sizes)),
            "--eval-csv", str(write_rows(folder, "eval", 2, sizes)),
            "--steps", "2", "--preview-every", "1 steps", "--validate-every", "2 steps",
            "--batch-size", "2", "--text-ids", "from the text", "--unknown-tokens", "keep",
            "--preview-text", "to be kept", "--original-python", python,
            "--original-folder", str(checkpoints), "--original-reference", str(reference),
        ]  # fmt: skip
        tell(folder, run(folder / "speaks", words))
        out = folder / "spoken.wav"
        trainer(["synthesize", str(folder / "speaks"), "--text", "be text", "--out", str(out)])
        print("synthesize:", describe(out))
        (checkpoints / "s2mel.pth").unlink()
        tell(folder, run(folder / "lacks", words))


def run(folder: Path, words: list[str]) -> Path:
    """Train into a folder and return it."""
    trainer([*words, "--run", str(folder)])
    return folder


def trainer(words: list[str]) -> None:
    """Run a command of the trainer, which must end well."""
    subprocess.run([sys.executable, "-m", "trainer", *words], check=True)


def tell(folder: Path, made: Path) -> None:
    """Print the previews and the words of a run."""
    for logged in EventLog(made / "events.jsonl").follow():
        if isinstance(logged.event, PreviewMade):
            path = made / logged.event.path
            shown = describe(path) if path.suffix == ".wav" else logged.event.text
            print(f"{made.name}: step {logged.event.step} {path.name}: {shown}")
        if isinstance(logged.event, Notice):
            print(f"{made.name}: {logged.event.text}".replace(str(folder), "DIR"))


def describe(path: Path) -> str:
    """Return length and loudness of a recording."""
    with wave.open(str(path), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float64)
        rate = file.getframerate()
    loudness = float(np.sqrt(np.mean(samples**2))) / 32768
    return f"{len(samples) / rate:.2f} s at {rate} Hz, rms {loudness:.4f}"


def write_base(folder: Path) -> Sizes:
    """Write random weights of the fewest layers; the original fixes the widths."""
    bpe_model = make_bpe(TEXTS, 40)
    part = ConformerSizes(width=32, blocks=1, heads=2, inner=64)
    # Two seconds of audio end a sentence that random weights do not.
    sizes = replace(
        Sizes(), layers=1, num_text_tokens=41, max_text_tokens=60, max_audio_tokens=100,
        speaker=part, emotion=part,
    )  # fmt: skip
    torch.manual_seed(0)
    state = UnifiedVoice(sizes, with_conditioning=True).state_dict()
    config = {"gpt": config_of(sizes), "version": 2.0}
    write_published(folder, state, config, bpe_model=bpe_model, licence="Random numbers.")
    return sizes


def write_rows(folder: Path, split: str, count: int, sizes: Sizes) -> Path:
    """Write a manifest of clips with precomputed arrays of these sizes."""
    place = folder / split
    place.mkdir(exist_ok=True)
    rows = [write_arrays(place, number) for number in range(count)]
    for number in range(count):
        rng = np.random.default_rng(number)
        condition = rng.standard_normal((sizes.num_latents, sizes.width), np.float32)
        np.save(place / "condition" / f"clip{number}.npy", condition)
        np.save(place / "emo_vec" / f"clip{number}.npy", condition[0])
    return write_manifest(place / "manifest.jsonl", rows)


if __name__ == "__main__":
    main()
