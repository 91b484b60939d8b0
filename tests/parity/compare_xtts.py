"""Compare our XTTS v2 with coqui-tts, which lives in an environment of its own.

Usage, from the root of the repository:

    python -m venv coqui
    coqui/bin/python -m pip install coqui-tts==0.28.0 "transformers<5" six \
        torch==2.11.0 torchaudio==2.11.0 torchcodec
    PYTHONPATH=. python tests/parity/compare_xtts.py --coqui-python coqui/bin/python

Compares, and exits with 1 if anything differs by more than the limit in its line: keys and shapes
at the published size; codes, mels, conditioning latents, losses, gradients, greedy codes, sampling
scores, speaker embeddings and audio, with weights from a seed; and folders both ways: what the
original writes is read here, and what is written here is loaded and spoken by the original, with
the same samples. `--write-golden` also writes tests/golden/xtts.json, which the test suite checks.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import xtts_folders as folders
import xtts_inputs as inputs
import xtts_ours as ours
from safetensors.torch import load_file
from torch import Tensor
from xtts_golden import limit, published_shapes, write_golden

from assets.make_xtts import make_folder
from trainer.models.xtts.checkpoint.base_folder import Base, open_base

COMMAND = "PYTHONPATH=. python tests/parity/compare_xtts.py --coqui-python PATH --write-golden"
SIDE = Path(__file__).with_name("_coqui_side.py")

Row = tuple[str, float, float]


def main() -> int:
    """Run every comparison, print its largest difference and write the golden numbers if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--coqui-python", type=Path, required=True, help="its interpreter")
    parser.add_argument("--write-golden", action="store_true", help="rewrite tests/golden")
    arguments = parser.parse_args()
    # Not resolved: the interpreter of a virtual environment is a link out of it.
    python = arguments.coqui_python.absolute()
    with tempfile.TemporaryDirectory() as folder:
        # Converted bases of the comparison are of no use afterwards.
        os.environ["TIMBRE_CACHE"] = str(Path(folder) / "cache")
        expected, facts = _expected(python, Path(folder))
        rows = [*_compare_networks(expected, facts["shapes"]), *_compare_shapes(facts["shapes"])]
        rows += _compare_folders(python, Path(folder))
    for name, found, allowed in rows:
        verdict = "" if found <= allowed else "  DIFFERS"
        print(f"{name:50} {found:9.2e}  limit {allowed:.0e}{verdict}")
    failed = [name for name, found, allowed in rows if not found <= allowed]
    print(f"{len(failed)} of {len(rows)} differ; {_versions(facts)}")
    if arguments.write_golden and not failed:
        write_golden(expected, facts, COMMAND)
    return 1 if failed else 0


def _versions(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in facts["versions"].items())


def _coqui(python: Path, command: str, *chosen: Path) -> None:
    """Run the original's side in its environment, away from our package of the same name."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [str(python), str(SIDE), command, *map(str, chosen)]
    subprocess.run(line, check=True, cwd=chosen[0], env=environment)


def _expected(python: Path, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    _coqui(python, "compute", folder)
    facts = json.loads((folder / "expected.json").read_text())
    return load_file(folder / "expected.safetensors"), facts


def _compare_networks(expected: dict[str, Tensor], shapes: Any) -> list[Row]:
    gpt = ours.make_gpt(shapes["small"])
    found = ours.compute_gpt(gpt) | ours.compute_mels()
    for size in ("small", "full"):
        found |= ours.compute_frozen(*ours.make_frozen(shapes[size], size), size)
    found["generation.scores"] = ours.sampling_scores(gpt, expected["generation.sampled"])
    compared = {name: value for name, value in expected.items() if name != "generation.sampled"}
    worst: dict[str, Row] = {}
    for name, value in compared.items():
        group = name.split(".gradient.")[0] + ".gradient" if ".gradient." in name else name
        distance = ours.difference(found[name], value) if name in found else float("inf")
        if group not in worst or not distance <= worst[group][1]:
            worst[group] = (group, distance, limit(group))
    return [*worst.values(), ("values that only one side has", _unpaired(found, compared), 0.0)]


def _unpaired(found: dict[str, Tensor], compared: dict[str, Tensor]) -> float:
    return float(len(set(found) ^ set(compared)))


def _compare_shapes(shapes: Any) -> list[Row]:
    """Count keys that one side lacks or that differ in shape, at the published size."""
    return [
        (f"keys and shapes of the published {part}", float(len(_shape_problems(part, lines))), 0.0)
        for part, lines in shapes["full"].items()
    ]


def _shape_problems(part: str, lines: dict[str, str]) -> set[Any]:
    return set(inputs.unpack(lines).items()) ^ set(published_shapes(part).items())


def _compare_folders(python: Path, folder: Path) -> list[Row]:
    """Read what the original writes, and let the original speak from what is written here."""
    _coqui(python, "make", folder)
    release, trained = folder / "release", folder / "trained"
    # The original rewrites a model.pth that holds its configuration: read it before.
    bases = {"published folder": open_base(release), "training checkpoint": open_base(trained)}
    rows = [row for name, base in bases.items() for row in _compare_base(name, base)]
    made = {name: folder / name.replace(" ", "_") for name in ("random", "export", "bf16 export")}
    make_folder(made["random"], folders.SIZES)
    folders.export(bases["published folder"], made["export"], bf16=False)
    folders.export(bases["published folder"], made["bf16 export"], bf16=True)
    made["fine-tuned export"] = folders.fine_tune(release, folder)
    made["original's folder"] = release
    found = {name: folders.speak(open_base(path)) for name, path in made.items()}
    _coqui(python, "speak", *made.values())
    for name, path in made.items():
        rows += _compare_speech(name, found[name], load_file(path / "spoken.safetensors"))
    return rows


def _compare_base(name: str, base: Base) -> list[Row]:
    voice = folders.voice_of(base)
    latents, embedding = base.voices()["A voice"]
    return [
        (f"{name}: tensors read wrongly", folders.wrong_tensors(base), 0.0),
        (f"{name}: latents of a reference", ours.difference(voice[0], latents), 1e-5),
        (f"{name}: embedding of a reference", ours.difference(voice[1], embedding), 1e-5),
    ]


def _compare_speech(name: str, found: dict[str, Tensor], spoken: dict[str, Tensor]) -> list[Row]:
    return [
        (f"{name}: text tokens", ours.difference(found["tokens"], spoken["tokens"]), 0.0),
        (
            f"{name}: latents of {spoken['gpt_latents'].shape[1]} codes",
            ours.difference(found["gpt_latents"], spoken["gpt_latents"]),
            1e-5,
        ),
        (
            f"{name}: {len(spoken['audio'])} samples spoken",
            ours.difference(found["audio"], spoken["audio"]),
            1e-4,
        ),
    ]


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(main())
