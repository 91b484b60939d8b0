"""A toy run: a small network with dropout on made-up clips, to test the loop in milliseconds."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.config.resolve import find_optimizer
from trainer.core.device import Device
from trainer.core.options import build_options
from trainer.core.registry import discover
from trainer.core.run_config import Choice, RunConfig, TrainingConfig, current_optimizer
from trainer.core.specs import Corpus, ModelFamily, OptimizerSpec, Schedule, Speech
from trainer.core.train_state import Cadence, TrainState
from trainer.core.types import Batch
from trainer.optimizers._core.param_groups import param_groups
from trainer.state.ema import start_average

_OPTIONAL = {"adamw_8bit": "bitsandbytes"}
PACKAGED = {"prodigy_reference": "prodigyopt", "schedule_free_reference": "schedulefree"}
"""Old names of optimizers that select the implementation of a package."""
OPTIMIZERS = [
    name
    for name in (*discover("trainer.optimizers", OptimizerSpec), *PACKAGED)
    if name not in _OPTIONAL or importlib.util.find_spec(_OPTIONAL[name])
]
"""The optimizers that can be built here; what needs a large package is tested where it is."""


def entry_of(name: str, values: dict[str, Any]) -> tuple[OptimizerSpec, Any]:
    """Return an optimizer's spec, by its name or an old one, and its options with `values`."""
    choice = current_optimizer(Choice(name, values))
    spec = find_optimizer(choice.name)
    return spec, build_options(spec.options, choice.options, choice.name)


class ToyModel(nn.Module):
    """Two layers with dropout and BatchNorm: everything that a resume can get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.outer = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.dropout(self.norm(self.inner(x)).relu(), 0.2, self.training)
        return self.outer(hidden)


class ToyBatches:
    """Batches that are a pure function of the step."""

    steps_per_epoch = 4
    num_clips = 16
    waited_s = 0.0

    def __init__(self, num_micro_steps: int = 1) -> None:
        self.num_micro_steps = num_micro_steps
        self.parts = 1
        self.closed = False

    def audio_s_of_step(self, step: int) -> float:
        return 4.0

    def micro_batches(self, step: int) -> list[Batch]:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 4, generator=generator)
        y = x.sum(1, keepdim=True)
        count = min(8, self.num_micro_steps * self.parts)
        parts = zip(x.chunk(count), y.chunk(count), strict=True)
        ids = iter(self.clip_ids(step))
        return [
            Batch({"x": a, "y": b}, [next(ids) for _ in a], {"clips": 8.0}, 4.0) for a, b in parts
        ]

    def clip_ids(self, step: int) -> list[str]:
        return [f"clip-{step}-{number}" for number in range(8)]

    def max_clips(self) -> int:
        return 8 // self.num_micro_steps

    def largest(self) -> Batch:
        return self.micro_batches(1)[0]

    def split_micro_batches(self, parts: int) -> None:
        self.parts = parts

    def close(self) -> None:
        self.closed = True


def _losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    error = (model(batch["x"]) - batch["y"]).square().sum() / batch.totals["clips"]
    return {"error": error, "size": 0.0 * error}


def _export(
    model: nn.Module,
    facts: dict[str, Any],
    folder: Path,
    weights: dict[str, Tensor] | None = None,
) -> None:
    save_file(weights or model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(facts))


def _not_used(*args: Any) -> Any:
    raise AssertionError("the toy family has no data road")


TOY = ModelFamily(
    name="toy",
    label="Toy",
    summary="for tests",
    options=object,
    licence="MIT",
    load=_not_used,
    featurizer=_not_used,
    survey=_not_used,
    counts=_not_used,
    collate=_not_used,
    losses=_losses,
    validate=lambda model, batch: (_losses(model, batch), {}),
    blocks=lambda model: [model.inner],  # type: ignore[list-item]
    synthesize=lambda model, facts, text, speaker: Speech(np.zeros(100, np.float32), 8000),
    export=_export,
)


def set_lr_factor(state: TrainState, factor: Callable[[int], float]) -> None:
    """Let the learning rate follow a function of the step."""
    state.schedule = _schedule(factor)


def _schedule(factor: Callable[[int], float]) -> Schedule:
    return Schedule("toy", "Toy", "", object, lambda step, total_steps, options: factor(step))


def make_setup(
    folder: Path,
    *,
    optimizer: str = "adamw",
    steps: int = 12,
    num_micro_steps: int = 1,
    **training: Any,
) -> TrainState:
    """Return a TrainState in a run folder, seeded; `training` goes into the TrainingConfig."""
    for name in ("control", "checkpoints", "previews"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = ToyModel()
    config = RunConfig(
        training=TrainingConfig(steps=steps, **training), optimizer=Choice(optimizer)
    )
    spec, plain = entry_of(optimizer, {})
    base_lr = 1.0 if spec.default_lr == 1.0 else 1e-2
    decay = {"weight_decay": 0.01} if hasattr(plain, "weight_decay") else {}
    _, options = entry_of(optimizer, {"lr": base_lr} | decay)
    device = torch.device("cpu")
    return TrainState(
        config=config,
        folder=folder,
        machine=Device("cpu", 0, "test", 1.0),
        device=device,
        family=TOY,
        model=model,
        corpus=Corpus({"toy": True}, {}),
        optimizer=spec.build(param_groups(model, 0.01), options, device),
        optimizer_spec=spec,
        base_lr=base_lr,
        optimizer_options=options,
        schedule=_schedule(lambda step: 1.0 - step / (2 * steps)),
        schedule_options=None,
        planned_steps=steps,
        train_batches=ToyBatches(num_micro_steps),
        val_batches=ToyBatches(2),
        first_step=1,
        last_step=steps,
        average=start_average(model) if config.training.ema_decay else None,
        validate_every=Cadence(4),
        save_every=Cadence(4),
        preview_text="hello",
        preview_speaker="toy",
    )
