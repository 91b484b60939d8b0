"""Race our training road against coqui-tts' GPTTrainer on the same GPT, clips and CPU.

Usage, from the root of the repository, with the environment that compare_xtts.py describes:

    PYTHONPATH=. OMP_NUM_THREADS=1 python tests/parity/race_coqui.py --coqui-python coqui/bin/python

Both fine-tune one folder of random weights in the published layout (a GPT of 6 layers and width 256
with the published DVAE) on the same recordings, with the same batch size, AdamW settings, dropout
and number of steps an epoch, one thread each, in fp32, the original's default; ours a second time
under bf16 autocast. Epochs alternate, so that a busy machine slows all of them alike; CPU seconds
of the whole process tree count, the wall clock is told besides.

The original does all it does by default: it decodes every clip twice, computes both mels and the
codes anew at every step, draws clips with replacement, and pads prompts to 6 s. Ours computes
features once: that is told as what comes before the first step, which is in the costs cumulated
from the start (`timbre_bf16` finds the features of `timbre`). Loaders have no workers of their own.

What the sides do not share: which clips a batch holds (ours holds clips of like length), where a
prompt comes from (the clip itself, or others of its speaker), and that ours clips the gradient. In
the costs of an epoch with validation and saving, ours also speaks short sentences, and the original
writes its frozen networks whenever the loss has fallen. Starting the interpreters and importing is
left out on both sides.
"""

import argparse
import csv
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from safetensors.torch import load_file
from torchaudio.functional import resample

from assets.make_base import describe_machine
from assets.make_xtts import make_folder
from trainer.models.xtts.checkpoint.base_folder import open_base
from trainer.models.xtts.network.sizes import SAMPLE_RATE, GptSizes, Sizes, VocoderSizes

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "assets" / "demo"
OUT = HERE.parents[1] / "benchmarks" / "results" / "coqui_race.json"

SIZES = Sizes(
    GptSizes(layers=6, width=256, heads=4, num_text_tokens=6681),
    vocoder=VocoderSizes(latent_width=256),
)
"""A small trunk; vocabularies and frozen networks as published, which the original builds in."""

CONTESTANTS: dict[str, dict[str, Any]] = {
    "timbre": {"sdpa": {}},
    "timbre_bf16": {"sdpa": {}, "mixed_precision": {"mode": "bf16"}},
}
"""Our runs by name, with the optimizations they tick: in fp32, and as the presets of XTTS do."""

VOICE = "hana"
SHORTEST_S, LONGEST_S = 3.0, 10.0
"""Of the clips that are joined: what people cut recordings to."""

Row = tuple[np.ndarray, str]
Epochs = dict[str, list[dict[str, Any]]]


def main() -> None:
    """Run the races and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--coqui-python", type=Path, required=True, help="its interpreter")
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5, help="epochs that are compared")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lengths", choices=("joined", "sentences"), nargs="*")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for lengths in chosen.lengths or ("joined", "sentences"):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TIMBRE_CACHE"] = str(Path(folder) / "cache")
            found = race(Path(folder), lengths, chosen)
        print(describe(lengths, found), flush=True)
        write_report(chosen, lengths, found)


def write_report(chosen: argparse.Namespace, lengths: str, found: dict[str, Any]) -> None:
    """Put a race into the report, beside those on other corpora."""
    before = json.loads(chosen.out.read_text()) if chosen.out.is_file() else {"corpora": {}}
    command = "PYTHONPATH=. OMP_NUM_THREADS=1 python tests/parity/race_coqui.py --coqui-python PATH"
    report = {
        "command": command,
        "what": " ".join((__doc__ or "").split("\n\n", 2)[2].split()),
        "machine": describe_machine(),
        "corpora": before["corpora"] | {lengths: found},
    }
    chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def race(folder: Path, lengths: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Race on one corpus, and return what came out."""
    make_folder(folder / "base", SIZES)
    clips = {
        "train": write_clips(folder, "train", chosen.clips, lengths == "joined"),
        "eval": write_clips(folder, "eval", chosen.batch_size, lengths == "joined"),
    }
    plan = {
        "epochs": chosen.rounds + 1,
        "batch_size": chosen.batch_size,
        "lr": 5e-6,
        "loader_workers": 0,
        "contestants": CONTESTANTS,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    own = [sys.executable, str(HERE / "_timbre_race_side.py"), str(folder)]
    peer = [str(chosen.coqui_python.absolute()), str(HERE / "_coqui_race_side.py"), str(folder)]
    lines = {"coqui": peer} | {name: [*own, name] for name in CONTESTANTS}
    epochs, facts = run_in_turns(folder, lines, plan["epochs"])
    check_fairness(folder, facts)
    return {"clips": clips, "plan": plan, **judge(epochs, facts)}


def run_in_turns(
    folder: Path, lines: dict[str, list[str]], num_epochs: int
) -> tuple[Epochs, dict[str, dict[str, Any]]]:
    """Start all sides one after another, then give each leave for one epoch at a time."""
    epochs: Epochs = {name: [] for name in lines}
    facts: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        sides = {}
        for name, line in lines.items():
            sides[name] = stack.enter_context(_side(folder, name, line))
            facts[name] = sides[name].hear("prepared")
        names = list(lines)
        for turn in range(num_epochs):
            # Whoever begins changes, so that nobody always follows the same neighbour.
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                sides[name].go()
                epochs[name].append(sides[name].hear("epoch")["epoch"])
                print(turn, name, epochs[name][-1]["train"], file=sys.stderr)
        for name, side in sides.items():
            side.go()
            facts[name] |= side.hear("finished")["finished"]
    return epochs, facts


class _Side:
    """A contestant in a process of its own."""

    def __init__(self, name: str, process: "subprocess.Popen[str]", log: Path) -> None:
        self.name, self._process, self._log = name, process, log

    def go(self) -> None:
        """Give leave for what comes next."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def hear(self, kind: str) -> dict[str, Any]:
        """Wait for its next word, which must be of this kind."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        word = json.loads(line or "{}")
        if kind not in word:
            raise SystemExit(f"{self.name} said {word}:\n{self._log.read_text()[-3000:]}")
        return word


@contextmanager
def _side(folder: Path, name: str, line: list[str]) -> Iterator[_Side]:
    """Start a side, away from packages of the same name if it is the original's."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    if name == "coqui":
        del environment["PYTHONPATH"]
    log = folder / f"{name}.log"
    pipe = subprocess.PIPE
    with log.open("w") as errors:
        process = subprocess.Popen(
            line, stdin=pipe, stdout=pipe, stderr=errors, text=True, cwd=folder, env=environment
        )
        try:
            yield _Side(name, process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def check_fairness(folder: Path, facts: dict[str, dict[str, Any]]) -> None:
    """Stop if the sides did not start from the same weights, or did not use all clips."""
    theirs = load_file(folder / "coqui_starts_with.safetensors")
    ours = open_base(folder / "base").gpt_state()
    wrong = {name for name in theirs.keys() ^ ours.keys()}
    wrong |= {
        name for name in theirs.keys() & ours.keys() if not torch.equal(theirs[name], ours[name])
    }
    if wrong:
        raise SystemExit(f"{len(wrong)} weights differ at the start, for one {min(wrong)}.")
    counts = {name: fact["trained_parameters"] for name, fact in facts.items()}
    if len(set(counts.values())) != 1:
        raise SystemExit(f"The sides train different numbers of parameters: {counts}")
    for name, fact in facts.items():
        if fact["clips_left_out"] or fact["threads"] != 1:
            raise SystemExit(f"{name} left out clips or used more threads than one: {fact}")


def write_clips(folder: Path, split: str, count: int, is_joined: bool) -> dict[str, float]:
    """Write recordings of one demo voice at the rate of the model, and their CSV; describe them."""
    rows = list(_sentences(split))
    if is_joined:
        rows = _joined(rows)
    if len(rows) < count and split == "train":
        raise SystemExit(f"The demo corpus gives {len(rows)} such clips; ask for fewer.")
    (folder / split).mkdir()
    lines, seconds = ["audio_file|text|speaker_name"], []
    for number, (wave, text) in enumerate(rows[:count]):
        name = f"{split}/{number:03}.wav"
        soundfile.write(folder / name, wave, SAMPLE_RATE, subtype="PCM_16")
        lines.append(f"{name}|{text}|{VOICE}")
        seconds.append(len(wave) / SAMPLE_RATE)
    (folder / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = {"count": len(seconds), "total_s": sum(seconds), "median_s": statistics.median(seconds)}
    found |= {"shortest_s": min(seconds), "longest_s": max(seconds)}
    return {name: round(value, 2) for name, value in found.items()}


def _sentences(split: str) -> Iterator[Row]:
    with (DEMO / f"{split}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="|"):
            if row["speaker_name"] == VOICE:
                wave, rate = soundfile.read(DEMO / row["audio_file"], dtype="float32")
                yield resample(torch.from_numpy(wave), rate, SAMPLE_RATE).numpy(), row["text"]


def _joined(rows: list[Row]) -> list[Row]:
    """Join neighbours to clips whose lengths spread as those of usual corpora do."""
    lengths = random.Random(0)
    joined: list[Row] = []
    pieces: list[Row] = []
    wanted = lengths.uniform(SHORTEST_S, LONGEST_S)
    for row in rows:
        pieces.append(row)
        if sum(len(wave) for wave, _ in pieces) / SAMPLE_RATE >= wanted:
            wave = np.concatenate([wave for wave, _ in pieces])
            joined.append((wave[: int(11 * SAMPLE_RATE)], " ".join(text for _, text in pieces)))
            pieces, wanted = [], lengths.uniform(SHORTEST_S, LONGEST_S)
    return joined


def judge(epochs: Epochs, facts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return seconds by contestant, and how many times more the original needs."""
    sides = {name: _measure(epochs[name], facts[name]) for name in epochs}
    ratios = {}
    for name in CONTESTANTS:
        ratios[name] = {
            "cpu_per_step": _ratio(epochs, name, _of_step, "cpu_s"),
            "wall_per_step": _ratio(epochs, name, _of_step, "wall_s"),
            "cpu_per_epoch_with_validation_and_saving": _ratio(epochs, name, _of_epoch, "cpu_s"),
            "cpu_from_start_through_epoch": _cumulated(sides, name),
        }
    return {"sides": sides, "coqui_needs_times_more_than": ratios}


def _measure(epochs: list[dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    compared = epochs[1:]
    columns = {
        "cpu_s_per_step": [_of_step(epoch, "cpu_s") for epoch in compared],
        "wall_s_per_step": [_of_step(epoch, "wall_s") for epoch in compared],
        "cpu_s_per_epoch_with_validation_and_saving": [_of_epoch(e, "cpu_s") for e in compared],
        "wall_s_per_epoch_with_validation_and_saving": [_of_epoch(e, "wall_s") for e in compared],
    }
    columns |= {
        f"cpu_s_per_step_in_{part}": [epoch["parts"][part] / epoch["steps"] for epoch in compared]
        for part in compared[0]["parts"]
    }
    positions = facts.pop("positions")
    prepared = facts.pop("prepared")["cpu_s"]
    steps = epochs[0]["steps"]
    trained = [steps * _of_step(epoch, "cpu_s") for epoch in epochs]
    return {
        **{name: _spread(values) for name, values in columns.items()},
        "cpu_s_before_the_first_step": round(prepared, 2),
        "cpu_s_from_start_through_epoch": [
            round(prepared + value, 2) for value in itertools.accumulate(trained)
        ],
        "steps_per_epoch": steps,
        "computed_to_real_positions": round(positions["computed"] / positions["real"], 3),
        **facts,
    }


def _of_step(epoch: dict[str, Any], clock: str) -> float:
    return epoch["train"][clock] / epoch["steps"]


def _of_epoch(epoch: dict[str, Any], clock: str) -> float:
    return epoch["whole"][clock]


def _spread(values: list[float]) -> dict[str, float]:
    """Return median, quartiles and extremes."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    found = {"median": middle, "quarter": low, "three_quarters": high}
    found |= {"least": min(values), "most": max(values)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def _ratio(
    epochs: Epochs, name: str, cost: Callable[[dict[str, Any], str], float], clock: str
) -> dict[str, float]:
    """Return the spread of the ratios of the rounds, whose epochs ran side by side."""
    pairs = zip(epochs["coqui"][1:], epochs[name][1:], strict=True)
    return _spread([cost(theirs, clock) / cost(ours, clock) for theirs, ours in pairs])


def _cumulated(sides: dict[str, Any], name: str) -> list[float]:
    """Return the ratios of all the training up to each epoch, with what came before it."""
    key = "cpu_s_from_start_through_epoch"
    pairs = zip(sides["coqui"][key], sides[name][key], strict=True)
    return [round(theirs / ours, 3) for theirs, ours in pairs]


def describe(lengths: str, found: dict[str, Any]) -> str:
    """Return the result as lines for people."""
    lines = [f"{lengths}: {found['clips']['train']}"]
    for name, side in found["sides"].items():
        lines.append(f"  {name:14} CPU s a step {side['cpu_s_per_step']}")
    for name, ratios in found["coqui_needs_times_more_than"].items():
        lines += [f"  coqui / {name}: {what} {ratio}" for what, ratio in ratios.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
