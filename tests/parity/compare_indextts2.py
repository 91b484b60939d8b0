"""Compare our IndexTTS-2 with the original code, which lives in an environment of its own.

Usage, from the root of the repository:

    git clone --branch v2.0.0 https://github.com/index-tts/index-tts upstream
    python -m venv indextts
    indextts/bin/python -m pip install torch==2.11.0 torchaudio==2.11.0 transformers==4.52.1 \
        einops sentencepiece safetensors pyyaml numpy scipy soundfile
    PYTHONPATH=. python tests/parity/compare_indextts2.py --upstream upstream \
        --python indextts/bin/python

Compares, and exits with 1 if anything differs by more than the limit in its line: keys and shapes
at the published size; conditioning, emotion vector, both losses and all gradients, with voices that
were computed before and with voices trained along; codes of the semantic codec; the filterbank;
audio to features and codes through the true class of w2v-bert-2.0, small and random; and a folder
that we write, which the original must load strictly to the same losses. `--write-golden` also
writes tests/golden/indextts2.json, which the test suite checks.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import indextts2_inputs as inputs
import indextts2_ours as ours
from safetensors.torch import load_file
from torch import Tensor
from xtts_golden import summarise
from xtts_inputs import unpack

from trainer.models.indextts2.checkpoint.export import write_published

COMMAND = (
    "PYTHONPATH=. python tests/parity/compare_indextts2.py --upstream PATH --python PATH "
    "--write-golden"
)
SIDE = Path(__file__).with_name("_indextts2_side.py")
HEARING = Path(__file__).with_name("_indextts2_hearing.py")
HEARING_LIMITS = {"heard.features": 1e-4, "heard.codes": 0.0}
Row = tuple[str, float, float]


def main() -> int:
    """Run every comparison, print its largest difference and write the golden numbers if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--upstream", type=Path, required=True, help="a checkout of v2.0.0")
    parser.add_argument("--python", type=Path, required=True, help="its interpreter")
    parser.add_argument("--write-golden", action="store_true", help="rewrite tests/golden")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Not resolved: the interpreter of a virtual environment is a link out of it.
        python, upstream = arguments.python.absolute(), arguments.upstream.resolve()
        _run_side("compute", python, upstream, folder)
        expected = load_file(folder / "expected.safetensors")
        facts = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
        rows = _compare(expected, facts)
        _run_side("hear", python, upstream, folder)
        rows += _compare_heard(python, folder)
        _write_folder(facts, folder)
        _run_side("load", python, upstream, folder)
        rows += _compare_loaded(expected, load_file(folder / "loaded.safetensors"))
    for row, found, allowed in rows:
        verdict = "" if found <= allowed else "  DIFFERS"
        print(f"{row:50} {found:9.2e}  limit {allowed:.0e}{verdict}")
    failed = [row for row, found, allowed in rows if not found <= allowed]
    print(f"{len(failed)} of {len(rows)} differ; {facts['versions']}")
    if arguments.write_golden and not failed:
        _write_golden(expected, facts)
    return 1 if failed else 0


def _run_side(command: str, python: Path, upstream: Path, folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(upstream)}
    line = [str(python), str(SIDE), command, str(folder)]
    subprocess.run(line, check=True, cwd=folder, env=environment)


def _compare(expected: dict[str, Tensor], facts: dict[str, Any]) -> list[Row]:
    model = ours.make_model(facts["shapes"]["small"])
    found = ours.compute(model) | ours.compute_front_ends()
    worst: dict[str, Row] = {}
    for name, value in expected.items():
        group = name.split(".gradient.")[0] + ".gradient" if ".gradient." in name else name
        distance = ours.difference(found[name], value) if name in found else float("inf")
        if group not in worst or not distance <= worst[group][1]:
            worst[group] = (group, distance, ours.limit(group))
    theirs = unpack(facts["shapes"]["full"])
    unpaired = set(theirs.items()) ^ set(ours.published_shapes().items())
    return [
        *worst.values(),
        ("values that only one side has", float(len(set(found) ^ set(expected))), 0.0),
        (f"keys and shapes of {len(theirs)} published tensors", float(len(unpaired)), 0.0),
    ]


def _compare_heard(python: Path, folder: Path) -> list[Row]:
    """Run our way from audio to codes where transformers is, and compare it with the original's."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([str(python), str(HEARING), str(folder)], check=True, env=environment)
    expected = load_file(folder / "expected_heard.safetensors")
    found = load_file(folder / "heard.safetensors")
    return [
        (name, ours.difference(found[name], value), HEARING_LIMITS[name.rpartition(".")[0]])
        for name, value in expected.items()
    ]


def _write_folder(facts: dict[str, Any], folder: Path) -> None:
    model = ours.make_model(facts["shapes"]["small"])
    config = {"gpt": inputs.GPT, "version": 2.0}
    write_published(folder, model.state_dict(), config, bpe_model=b"", licence="Random numbers.")


def _compare_loaded(expected: dict[str, Tensor], loaded: dict[str, Tensor]) -> list[Row]:
    """Compare what the original says of the folder that we wrote with what it said before."""
    return [
        (f"loaded from our folder: {name}", ours.difference(value, expected[name]), 0.0)
        for name, value in loaded.items()
    ]


def _write_golden(expected: dict[str, Tensor], facts: dict[str, Any]) -> None:
    parts = {
        "what": "What the original computes with a small IndexTTS-2; weights: parity/xtts_inputs",
        "made_with": facts["versions"],
        "command": COMMAND,
        "shapes": facts["shapes"],
    }
    head = json.dumps(parts, indent=1).removesuffix("\n}")
    values = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(summarise(name, value))}"
        for name, value in sorted(expected.items())
    )
    ours.GOLDEN.write_text(f'{head},\n "values": {{\n{values}\n }}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
