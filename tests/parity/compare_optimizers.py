"""Run the authors' code of several optimizers and write what it computes as golden numbers.

Usage, from the root of the repository:

    git clone https://github.com/AGI-Arena/MARS UP/MARS          # and likewise into UP:
        # nikhilvyas/SOAP, apple/ml-ademamix, KellerJordan/Muon
    pip install --no-deps --target UP/packages kron-torch==0.3.3 lion-pytorch==0.2.5
    PYTHONPATH=. python tests/parity/compare_optimizers.py --upstream UP

The first four are on no package registry. Compares our optimizers with each, prints the distances,
exits with 1 if one is beyond its limit, and writes tests/golden/optimizers.json, which the test
suite checks. prodigyopt, schedulefree and PyTorch's Muon are compared in the suite itself.
"""

import argparse
import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the published code compiles small functions

import optimizer_problem as problem  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from trainer.core.options import build_options  # noqa: E402
from trainer.core.registry import discover  # noqa: E402
from trainer.core.specs import OptimizerSpec  # noqa: E402

COMMAND = "PYTHONPATH=. python tests/parity/compare_optimizers.py --upstream UP"
GOLDEN = Path(__file__).parent.parent / "golden" / "optimizers.json"
FILES = {
    "mars": "MARS/MARS/optimizers/mars.py",
    "soap": "SOAP/soap.py",
    "ademamix": "ml-ademamix/pytorch/ademamix.py",
    "muon": "Muon/muon.py",
    "kron": "packages/kron_torch/kron.py",
    "lion": "packages/lion_pytorch/lion_pytorch.py",
}


def main() -> int:
    """Compare all cases; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare optimizers with their authors' code.")
    parser.add_argument("--upstream", type=Path, required=True, help="folder with the checkouts")
    upstream = parser.parse_args().upstream
    for name, path in FILES.items():
        load_file(f"published_{name}", upstream / path)
    traces: dict[str, problem.Trace] = {}
    worst = 0.0
    for name, case in problem.CASES.items():
        traces[name] = run_published(name, case["options"])
        found = problem.distance(run_ours(name, case["options"]), traces[name])
        worst = max(worst, found / case["limit"])
        print(f"{name:14} {found:.1e} of the way apart (limit {case['limit']:.0e})")
    golden = {
        "what": "Weights that the authors' code reaches; problem: parity/optimizer_problem.py",
        "made_with": versions(upstream) | {"torch": str(torch.__version__).split("+")[0]},
        "command": COMMAND,
        "traces": {
            name: [[round(x, 7) for x in at] for at in rows] for name, rows in traces.items()
        },
    }
    GOLDEN.write_text(json.dumps(golden) + "\n", encoding="utf-8")
    return int(worst > 1)


def load_file(name: str, path: Path) -> None:
    """Import a file under a name of its own; several checkouts use the same names."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader, path
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def run_ours(name: str, values: dict[str, Any]) -> problem.Trace:
    """Train with our optimizer."""
    spec = discover("trainer.optimizers", OptimizerSpec)[name]
    options = build_options(spec.options, values, name)
    noise = numbered_noise()
    kron = importlib.import_module("trainer.optimizers.kron")
    with mock.patch.object(kron, "draw_noise", lambda like, seed: noise(like)):
        return problem.train(spec.build(problem.make_groups(), options, torch.device("cpu")))


def run_published(name: str, values: dict[str, Any]) -> problem.Trace:
    """Train with the authors' code at the same settings."""
    noise = numbered_noise()
    if name != "muon":
        with mock.patch.object(torch, "randn_like", noise):
            return problem.train(PUBLISHED[name](problem.make_groups(), values))
    groups = problem.make_groups()
    module = sys.modules["published_muon"]
    hidden = {"params": groups[0]["params"], "weight_decay": problem.MATRIX_DECAY}
    first = module.SingleDeviceMuon([hidden], lr=values["lr"])
    second = torch.optim.AdamW(groups[1:], lr=values["lr"], betas=(0.9, values["beta2"]))
    both = Both([first, second])
    return problem.train(both)


class Both(torch.optim.Optimizer):
    """Two optimizers that step together."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts

    def step(self, closure: Any = None) -> None:
        """Step both."""
        for part in self.parts:
            part.step()


def make_mars(kind: str) -> Callable[[list[dict[str, Any]], dict[str, Any]], Any]:
    """Return a builder of the published MARS; one rate, and no decay of vectors."""

    def build(groups: list[dict[str, Any]], values: dict[str, Any]) -> Any:
        lr = values["lr"]
        module = sys.modules["published_mars"]
        return module.MARS(groups, lr=lr, mars_type=kind, lr_1d=lr, weight_decay_1d=0.0)

    return build


def make_ademamix(groups: list[dict[str, Any]], values: dict[str, Any]) -> Any:
    """Return the published AdEMAMix."""
    ramp = values["ramp_steps"]
    return sys.modules["published_ademamix"].AdEMAMix(
        groups,
        lr=values["lr"],
        betas=(0.9, 0.999, values["beta3"]),
        alpha=5.0,
        alpha_warmup=ramp,
        beta3_warmup=ramp,
    )


def make_soap(groups: list[dict[str, Any]], values: dict[str, Any]) -> Any:
    """Return the published SOAP."""
    soap = sys.modules["published_soap"].SOAP
    return soap(
        groups,
        lr=values["lr"],
        precondition_frequency=values["refresh_every"],
        max_precond_dim=values["max_size"],
    )


def make_kron(groups: list[dict[str, Any]], values: dict[str, Any]) -> Any:
    """Return the published Kron, which balances its factors by chance; here it does not."""
    kron = sys.modules["published_kron"].Kron(groups, lr=values["lr"])
    kron.rng = mock.Mock(spec=random.Random, random=lambda: 1.0)
    return kron


def make_lion(groups: list[dict[str, Any]], values: dict[str, Any]) -> Any:
    """Return the published Lion."""
    return sys.modules["published_lion"].Lion(groups, lr=values["lr"])


PUBLISHED: dict[str, Callable[[list[dict[str, Any]], dict[str, Any]], Any]] = {
    "mars_adamw": make_mars("mars-adamw"),
    "mars_lion": make_mars("mars-lion"),
    "mars_shampoo": make_mars("mars-shampoo"),
    "ademamix": make_ademamix,
    "soap": make_soap,
    "kron": make_kron,
    "lion": make_lion,
}


def numbered_noise() -> Callable[[Tensor], Tensor]:
    """Return a function that gives the same noise (any shape) to both sides, call by call."""
    calls = iter(range(10**6))
    return lambda like: 1.7 * problem.wave(like.shape, 5000 + next(calls)).to(like)


def versions(upstream: Path) -> dict[str, str]:
    """Return the commit of every checkout and the version of every package."""
    found = {}
    for name in ("MARS", "SOAP", "ml-ademamix", "Muon"):
        asked = ["git", "-C", str(upstream / name), "rev-parse", "HEAD"]
        found[name] = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    path = [str(upstream / "packages")]
    for package in metadata.distributions(path=path):
        if package.name in ("kron-torch", "lion-pytorch"):
            found[package.name] = package.version
    return found


if __name__ == "__main__":
    sys.exit(main())
