"""Time a training step of IndexTTS-2 here and as the community's trainer takes it, side by side.

Usage, from the root of the repository, with the environment of compare_indextts2.py:

    PYTHONPATH=. python tests/parity/speed_indextts2.py --upstream PATH --python PATH \
        --out benchmarks/results/indextts2_step.json

Both train the same network on the same batch of clips of different lengths with AdamW and clipping.
The community's way pads text and codes of a batch and computes every block again in the backward
pass; its fp16 with a scaler exists on GPUs only, so that here both run in fp32 and under bf16
autocast. Both processes stay alive and steps take turns, so that whatever else a machine does
meets all alike; processor seconds are counted, not those of the clock.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import indextts2_inputs as inputs
import numpy as np
import torch

from assets.make_base import describe_machine
from trainer.core.types import Batch
from trainer.models.indextts2.network.gpt import UnifiedVoice
from trainer.models.indextts2.network.sizes import Sizes
from trainer.models.indextts2.training.batches import collate, counts, layout_of
from trainer.models.indextts2.training.losses import losses

SIDE = Path(__file__).with_name("_indextts2_side.py")
COMMAND = (
    "PYTHONPATH=. python tests/parity/speed_indextts2.py --upstream PATH --python PATH "
    "--out benchmarks/results/indextts2_step.json"
)
THEIRS = ("padded", "padded bf16", "kept", "kept bf16")
OURS = ("fp32", "bf16")


def main() -> None:
    """Take turns, and write medians and quartiles."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--upstream", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in (*THEIRS, *OURS)}
    ours = OurSteps()
    with tempfile.TemporaryDirectory() as folder:
        side = _start(arguments.python.absolute(), arguments.upstream.resolve(), folder)
        for turn in range(arguments.rounds + 1):
            for name in THEIRS:
                taken[name].append(_ask(side, name))
            for name in OURS:
                taken[name].append(ours.take(is_bf16=name == "bf16"))
            if turn == 0:  # The first steps make the optimizer's state.
                taken = {name: [] for name in taken}
        assert side.stdin is not None
        side.stdin.close()
        side.wait()
    report = make_report(taken, arguments.rounds)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


def make_report(taken: dict[str, list[float]], rounds: int) -> dict[str, Any]:
    """Return what was measured: medians and quartiles of processor seconds, and their ratios."""
    found = {
        name: dict(zip(("q1", "median", "q3"), np.quantile(values, [0.25, 0.5, 0.75]), strict=True))
        for name, values in taken.items()
    }
    pairs = {"fp32": ("padded", "kept"), "bf16": ("padded bf16", "kept bf16")}
    return {
        "what": "processor seconds of a training step, batch of 8 clips of 2 to 9 s",
        "command": COMMAND,
        "machine": describe_machine(),
        "rounds": rounds,
        "network": inputs.SPEED,
        "community": _rounded({name: found[name] for name in THEIRS}),
        "timbre": _rounded({name: found[name] for name in OURS}),
        "times_faster": {
            name: {
                "as its trainer does": round(found[whole]["median"] / found[name]["median"], 2),
                "without checkpointing": round(found[kept]["median"] / found[name]["median"], 2),
            }
            for name, (whole, kept) in pairs.items()
        },
    }


def _rounded(values: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {part: round(float(value), 3) for part, value in parts.items()}
        for name, parts in values.items()
    }


def _start(python: Path, upstream: Path, folder: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(python), str(SIDE), "speed", folder], cwd=folder, text=True,
        env=os.environ | {"PYTHONPATH": str(upstream)}, stderr=subprocess.DEVNULL,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def _ask(side: "subprocess.Popen[str]", name: str) -> float:
    assert side.stdin is not None and side.stdout is not None
    side.stdin.write(f"{name}\n")
    side.stdin.flush()
    while True:
        line = side.stdout.readline()
        if not line:
            sys.exit("The original's side ended early.")
        # The original prints words of its own.
        if line.strip().replace(".", "", 1).isdigit():
            return float(line)


class OurSteps:
    """The same network and batch as we train them."""

    def __init__(self) -> None:
        config = inputs.SPEED
        sizes = Sizes(
            layers=config["layers"], width=config["model_dim"], heads=config["heads"],
            max_text_tokens=config["max_text_tokens"], max_audio_tokens=config["max_mel_tokens"],
        )  # fmt: skip
        self.model = UnifiedVoice(sizes).train()
        for block in self.model.gpt.h:
            block.attn.use_sdpa = True  # type: ignore[union-attr]
        voice = {
            "condition": np.zeros((32, sizes.width), np.float32),
            "emotion": np.zeros(sizes.width, np.float32),
            "layout": layout_of(sizes),
        }
        clips = [voice | {"tokens": text, "codes": codes} for text, codes in inputs.speed_clips()]
        totals = {name: sum(counts(clip)[name] for clip in clips) for name in ("text", "audio")}
        self.batch = Batch(collate(clips), [f"{at}" for at in range(len(clips))], totals, 1.0)
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.01, fused=True)

    def take(self, *, is_bf16: bool) -> float:
        """Take a step and return its processor seconds."""
        started = time.process_time()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            parts = losses(self.model, self.batch)
        sum(parts.values(), torch.zeros(())).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return time.process_time() - started


if __name__ == "__main__":
    main()
