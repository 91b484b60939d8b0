"""Race the optimizers on the demo from the base checkpoint and keep what came out.

    OMP_NUM_THREADS=1 python -m benchmarks.measure_race --work /tmp/race
    OMP_NUM_THREADS=1 python -m benchmarks.measure_race --work /tmp/race-all --all --steps 150
    OMP_NUM_THREADS=1 python -m benchmarks.measure_race --work /tmp/race-gpt --gpt --steps 120

It writes the table, the numbers and the picture `benchmarks/results/race_demo.*`, `race_all.*` with
every optimizer of the catalog, or `race_gpt.*` with a small GPT of XTTS v2 that starts from random
weights. A race that was interrupted goes on when the same work folder is given again.
"""

import argparse
import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from assets.make_base import describe_machine, trainer_command
from assets.make_demo import ASSETS
from assets.make_xtts import make_folder
from trainer.core.registry import discover
from trainer.core.specs import OptimizerSpec
from trainer.models.xtts.network.sizes import GptSizes, Sizes, VocoderSizes

OPTIMIZERS = "adamw,prodigy,schedule_free_adamw,adamw:lr=2e-3"
OF_GPT = "adamw:lr=1e-3,prodigy,schedule_free_adamw,mars_adamw,ademamix,soap,muon"
"""Those people ask about; the usual rate of AdamW is one of fine-tuning, too low from nothing."""
GPT = Sizes(GptSizes(layers=4, width=128, heads=4, num_text_tokens=6681), vocoder=VocoderSizes(128))
"""With the codes of a full-sized DVAE: what a CPU trains thousands of steps in an hour."""


def main() -> None:
    """Read the command line, race, and write the table, the numbers and the picture."""
    parser = argparse.ArgumentParser(description="Race the optimizers on the demo.")
    parser.add_argument("--work", type=Path, required=True, help="new folder, or one to go on in")
    parser.add_argument("--optimizers", help=f"[{OPTIMIZERS}]")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--all", action="store_true", help="every optimizer of the catalog")
    kind.add_argument("--gpt", action="store_true", help="on a small GPT with random weights")
    parser.add_argument("--minutes", default="12", help="for all, unless --steps is told")
    parser.add_argument("--steps", help="of every run; a quarter of them for those of a sweep")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--validations", default="8", help="points of each curve")
    parser.add_argument("--out", type=Path, help="without an ending [benchmarks/results/race_...]")
    options = parser.parse_args()
    kind = "all" if options.all else "gpt" if options.gpt else "demo"
    usual = all_optimizers() if options.all else OF_GPT if options.gpt else OPTIMIZERS
    out = options.out or ASSETS.parent / "benchmarks" / "results" / f"race_{kind}"
    length = ["--steps", options.steps] if options.steps else ["--minutes", options.minutes]
    model = _random_gpt(options.work.with_name(f"{options.work.name}-base")) if options.gpt else []
    words = [
        "--train-csv", ASSETS / "demo" / "train.csv", "--eval-csv", ASSETS / "demo" / "eval.csv",
        *(model or ["--base", ASSETS / "base"]), "--optimizers", options.optimizers or usual,
        "--seeds", options.seeds, "--rates", "3", "--validations", options.validations,
        "--batch-size", "8", *length,
    ]  # fmt: skip
    is_begun = (options.work / "race.json").is_file()
    where = ["--race", options.work]
    subprocess.run(trainer_command("race", *where, *([] if is_begun else words)), check=True)
    shown = shlex.join(["python", "-m", "trainer", "race", "--race", "W", *map(str, words)])
    keep(options.work, shown, out)


def _random_gpt(folder: Path) -> list[Any]:
    """Write random weights in the layout of XTTS v2, once, and return the words that train them."""
    if not folder.exists():
        make_folder(folder, GPT)
    return ["--family", "xtts", "--base", folder, "--sdpa"]


def all_optimizers() -> str:
    """Return the names of all optimizers, the baseline first."""
    names = discover("trainer.optimizers", OptimizerSpec)
    return ",".join(sorted(names, key=lambda name: (name != "adamw", name)))


def keep(race: Path, command: str, out: Path) -> None:
    """Write the results of a finished race with their command and machine."""
    text = _anywhere((race / "results.json").read_text(encoding="utf-8"), race)
    command = _anywhere(command, race)
    about = {"command": command, "machine": describe_machine()}
    values = json.loads(text)
    values["device"] = values.pop("machine")
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(about | values, indent=1, ensure_ascii=False) + "\n"
    out.with_suffix(".json").write_text(text, encoding="utf-8")
    table = (race / "race.md").read_text(encoding="utf-8")
    title = "# A race on the demo\n\n"
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine().items())
    head = f"{title}```bash\n{command}\n```\n\nMachine: {machine}.\n\n"
    out.with_suffix(".md").write_text(head + table, encoding="utf-8")
    shutil.copyfile(race / "race.png", out.with_suffix(".png"))


def _anywhere(text: str, race: Path) -> str:
    """Name files as they are called on any machine: the race's folder is W."""
    return text.replace(f"{ASSETS}/", "assets/").replace(str(race), "W")


if __name__ == "__main__":
    main()
