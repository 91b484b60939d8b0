"""Race the optimizers on the demo from the base checkpoint and keep what came out.

    OMP_NUM_THREADS=1 python -m assets.measure_race --work /tmp/race
    OMP_NUM_THREADS=1 python -m assets.measure_race --work /tmp/race-all --all --steps 150

It writes the table, the numbers and the picture `assets/measured/race_demo.*`, or `race_all.*` with
every optimizer of the catalog. A race that was interrupted goes on when the same work folder is
given again.
"""

import argparse
import json
import shlex
import shutil
import subprocess
from pathlib import Path

from assets.make_base import describe_machine, trainer_command
from assets.make_demo import ASSETS
from trainer.catalog import discover
from trainer.specs import OptimizerSpec

OPTIMIZERS = "adamw,prodigy,schedule_free_adamw,adamw:lr=2e-3"


def main() -> None:
    """Read the command line, race, and write the table, the numbers and the picture."""
    parser = argparse.ArgumentParser(description="Race the optimizers on the demo.")
    parser.add_argument("--work", type=Path, required=True, help="new folder, or one to go on in")
    parser.add_argument("--optimizers", default=OPTIMIZERS)
    parser.add_argument("--all", action="store_true", help="every optimizer of the catalog")
    parser.add_argument("--minutes", default="12", help="for all, unless --steps is told")
    parser.add_argument("--steps", help="of every run; a quarter of them for those of a sweep")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--validations", default="8", help="points of each curve")
    parser.add_argument("--out", type=Path, help="without an ending [assets/measured/race_...]")
    options = parser.parse_args()
    if options.all:
        options.optimizers = all_optimizers()
    out = options.out or ASSETS / "measured" / ("race_all" if options.all else "race_demo")
    length = ["--steps", options.steps] if options.steps else ["--minutes", options.minutes]
    words = [
        "--train-csv", ASSETS / "demo" / "train.csv", "--eval-csv", ASSETS / "demo" / "eval.csv",
        "--base", ASSETS / "base", "--optimizers", options.optimizers, "--seeds", options.seeds,
        "--rates", "3", "--validations", options.validations, "--batch-size", "8", *length,
    ]  # fmt: skip
    is_begun = (options.work / "race.json").is_file()
    where = ["--race", options.work]
    subprocess.run(trainer_command("race", *where, *([] if is_begun else words)), check=True)
    shown = shlex.join(["python", "-m", "trainer", "race", "--race", "W", *map(str, words)])
    keep(options.work, shown.replace(f"{ASSETS}/", "assets/"), out)


def all_optimizers() -> str:
    """Return the names of all optimizers, the baseline first."""
    names = discover("trainer.optimizers", OptimizerSpec)
    return ",".join(sorted(names, key=lambda name: (name != "adamw", name)))


def keep(race: Path, command: str, out: Path) -> None:
    """Write the results of a finished race with their command and machine."""
    text = (race / "results.json").read_text(encoding="utf-8").replace(f"{ASSETS}/", "assets/")
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


if __name__ == "__main__":
    main()
