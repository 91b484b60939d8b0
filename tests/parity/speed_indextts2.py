"""Time a training step of IndexTTS-2 here and as the community's trainer takes it, side by side.

Usage, from the root of the repository, with the environment of compare_indextts2.py:

    PYTHONPATH=. python tests/parity/speed_indextts2.py --upstream PATH --python PATH

Both train the same network on the same batch of clips of different lengths with AdamW and clipping.
The community's way pads text and codes of a batch and computes every block again in the backward
pass; its fp16 scaler exists on GPUs only, so both run in fp32 here. The fastest of several steps
counts, and the two take turns, since other work on a machine slows both.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import indextts2_inputs as inputs
import torch

from trainer.data.types import Batch
from trainer.models.indextts2.batches import collate, counts, layout_of
from trainer.models.indextts2.losses import losses
from trainer.models.indextts2.network import UnifiedVoice
from trainer.models.indextts2.sizes import Sizes

SIDE = Path(__file__).with_name("_indextts2_side.py")


def main() -> None:
    """Take turns, and print the fastest step of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--upstream", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    theirs, ours = [], []
    for _ in range(arguments.rounds):
        theirs.append(_time_theirs(arguments.python.absolute(), arguments.upstream.resolve()))
        ours.append(_time_ours(use_sdpa=True))
    report = {
        "what": "seconds a step, batch of 8, fp32 on a CPU, the fastest of all",
        "size": inputs.SPEED,
        "community_s": round(min(theirs), 3),
        "timbre_s": round(min(ours), 3),
        "ratio": round(min(theirs) / min(ours), 2),
        "threads": torch.get_num_threads(),
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


def _time_theirs(python: Path, upstream: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(upstream)}
        line = [str(python), str(SIDE), "speed", folder]
        subprocess.run(line, check=True, env=environment, cwd=folder, stderr=subprocess.DEVNULL)
        return float(json.loads((Path(folder) / "speed.json").read_text(encoding="utf-8")))


def _time_ours(*, use_sdpa: bool) -> float:
    config = inputs.SPEED
    sizes = Sizes(
        layers=config["layers"], width=config["model_dim"], heads=config["heads"],
        max_text_tokens=config["max_text_tokens"], max_audio_tokens=config["max_mel_tokens"],
    )  # fmt: skip
    model = UnifiedVoice(sizes).train()
    for block in model.gpt.h:
        block.attn.use_sdpa = use_sdpa  # type: ignore[union-attr]
    clips = []
    for text, codes in inputs.speed_clips():
        voice = {"condition": torch.zeros(32, sizes.width).numpy()}
        clips.append(
            voice
            | {"emotion": torch.zeros(sizes.width).numpy(), "tokens": text, "codes": codes}
            | {"layout": layout_of(sizes)}
        )
    totals = {name: sum(counts(clip)[name] for clip in clips) for name in ("text", "audio")}
    batch = Batch(collate(clips), [str(number) for number in range(len(clips))], totals, 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    taken = []
    for _ in range(inputs.SPEED_STEPS):
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        sum(losses(model, batch).values(), torch.zeros(())).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        taken.append(time.perf_counter() - started)
    return min(taken)


if __name__ == "__main__":
    main()
