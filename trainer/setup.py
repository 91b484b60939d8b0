"""Setup: everything decided before the first step; data only."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from trainer.averaging import start_average
from trainer.config import RunConfig
from trainer.data.types import Batch
from trainer.device import Device
from trainer.events import RunAdapted
from trainer.specs import Corpus, ModelFamily, OptimizerSpec

STAGES = ("backend", "model", "precision", "compile", "data")


class StepBatches(Protocol):
    """The batches of a split; the step alone decides them, so resuming needs no saved position."""

    steps_per_epoch: int
    num_clips: int
    waited_s: float
    """Seconds the loop has waited for batches so far."""

    def audio_s_of_step(self, step: int) -> float:
        """Return the seconds of audio in a step, over all ranks."""
        ...

    def of_step(self, step: int) -> list[Batch]:
        """Return this rank's micro-batches of a step (counted from 1), `totals` filled."""
        ...

    def clip_ids(self, step: int) -> list[str]:
        """Return the clips of a whole step, over all ranks and micro-steps."""
        ...

    def most_clips(self) -> int:
        """Return how many clips the largest micro-batch holds before it is cut."""
        ...

    def largest(self) -> Batch:
        """Return the micro-batch that needs the most memory."""
        ...

    def cut(self, parts: int) -> None:
        """Cut every micro-batch into so many pieces from now on; `totals` stay the step's."""
        ...

    def close(self) -> None:
        """Stop the loader's workers."""
        ...


@dataclass(frozen=True)
class World:
    """This process among those that train one run; one GPU is a world of size 1."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process writes the events and the checkpoints."""
        return self.rank == 0


@dataclass
class Precision:
    """In which numbers the forward pass runs; None means the weights' own type.

    A scaler that is not enabled passes everything through, so the loop needs no branch.
    """

    autocast_dtype: torch.dtype | None = None
    scaler: GradScaler = field(default_factory=lambda: GradScaler("cpu", enabled=False))

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context the forward pass runs in."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast_dtype)


@dataclass(frozen=True)
class Cadence:
    """When something is due: every so many steps or minutes; neither means never."""

    steps: int | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class Probe:
    """What one real forward and backward pass showed, operator by operator.

    `operators` counts ATen operators; `matmul_dtypes` the operand types of matrix products and
    convolutions; `block_calls` how often each block's forward ran (2 under checkpointing);
    `saved_bytes` what autograd and checkpointing kept for the backward pass; `compiled_calls` how
    often each block ran compiled. Operators are those of the blocks' own code: inside a compiled
    block nobody can watch.
    """

    operators: Counter[str]
    matmul_dtypes: Counter[str]
    block_calls: tuple[int, ...]
    saved_bytes: int
    compiled_calls: tuple[int, ...] = ()


def _pass_over(part: str) -> None:
    """Take no notice: nobody times this step."""


def _leave_wide() -> None:
    """Do nothing: the weights are in full precision."""


@dataclass
class Setup:
    """Everything the loop needs; assembled once, then only its tensors change."""

    config: RunConfig
    folder: Path
    machine: Device
    device: torch.device
    family: ModelFamily
    model: nn.Module
    corpus: Corpus
    optimizer: torch.optim.Optimizer
    optimizer_spec: OptimizerSpec
    base_lr: float
    lr_factor: Callable[[int], float]
    train_batches: StepBatches
    val_batches: StepBatches | None
    first_step: int
    last_step: int
    world: World = World()
    precision: Precision = field(default_factory=Precision)
    average: dict[str, torch.Tensor] | None = None
    """Exponentially averaged parameters by name (EMA), or None when they are not kept."""
    validate_every: Cadence = Cadence()
    save_every: Cadence = Cadence()
    preview_every: Cadence = Cadence()
    preview_text: str = ""
    preview_speaker: str = ""
    folded: Callable[[], AbstractContextManager[None]] = nullcontext
    """While it lasts, the model holds the weights a person would take away as single tensors."""
    has_parts: bool = False
    """Whether training keeps those weights in parts, which `folded` puts together."""
    in_full: Callable[[], AbstractContextManager[None]] = nullcontext
    """While it lasts, the model holds its weights in fp32, also where it trains with fewer bits."""
    masters: dict[str, nn.Parameter] = field(default_factory=dict)
    """Of weights that the model holds in fewer bits, the fp32 ones that are updated, by name."""
    widen: Callable[[], None] = _leave_wide
    """Gives the model its weights in fp32 for good."""
    build_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    """Makes the run's optimizer for what is trainable in a model."""
    data_hash: str = ""
    """Hash of all that decided the clips and their features."""
    adapted: RunAdapted = RunAdapted(0, "")
    """What the run changed by itself so that it can go on; see `adapting`."""
    enter: Callable[[str], None] = _pass_over
    """Told which part of a step begins: `data`, `forward`, `backward`, `update`."""
    progress: dict[str, Any] = field(default_factory=dict)
    """What decisions need across a resume, as plain JSON: best value, patience, seconds trained."""

    def train_other_weights(self) -> None:
        """Make optimizer and average anew, after other weights became trainable."""
        if self.build_optimizer is None:
            raise ValueError("this setup does not know how to build its optimizer")
        self.optimizer = self.build_optimizer(self.model)
        if self.average is not None:
            self.average = start_average(self.model)

    def trained_weights(self) -> dict[str, nn.Parameter]:
        """Return what is trained by name, each weight in the most bits there are of it."""
        return {
            name: self.masters.get(name, value)
            for name, value in self.model.named_parameters()
            if value.requires_grad
        }
