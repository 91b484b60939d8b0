"""The state of an assembled run: everything that is decided before the first step."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypedDict

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from trainer.core.device import Device
from trainer.core.events import RunAdapted
from trainer.core.options import Options
from trainer.core.run_config import RunConfig
from trainer.core.specs import Corpus, ModelFamily, OptimizerSpec, Schedule
from trainer.core.types import Batch


class StepBatches(Protocol):
    """The batches of a split, a pure function of the step, so a resume needs no saved position."""

    steps_per_epoch: int
    num_clips: int
    waited_s: float
    """Seconds the loop has waited for batches so far."""

    def audio_s_of_step(self, step: int) -> float:
        """Return the seconds of audio in a step, over all ranks."""
        ...

    def micro_batches(self, step: int) -> list[Batch]:
        """Return this rank's micro-batches of a step (counted from 1), `totals` filled."""
        ...

    def clip_ids(self, step: int) -> list[str]:
        """Return the clips of a whole step, over all ranks and micro-steps."""
        ...

    def max_clips(self) -> int:
        """Return how many clips the largest micro-batch holds before any split."""
        ...

    def largest(self) -> Batch:
        """Return the micro-batch that needs the most memory."""
        ...

    def split_micro_batches(self, parts: int) -> None:
        """Split every further micro-batch into `parts`; `totals` stay those of the step."""
        ...

    def close(self) -> None:
        """Stop the loader's workers."""
        ...


@dataclass(frozen=True)
class World:
    """This process among those that train the run; a single process is a world of size 1."""

    # `rank` counts over all machines, `local_rank` on this one, where it selects the GPU.
    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process writes the events and the checkpoints."""
        return self.rank == 0


@dataclass
class Precision:
    """The dtype of the forward pass; None means the dtype of the weights.

    A disabled scaler passes everything through unchanged, so the loop needs no branch.
    """

    autocast_dtype: torch.dtype | None = None
    # Only fp16 needs a scaler, because its range is too small for gradients; bf16 has fp32's range.
    scaler: GradScaler = field(default_factory=lambda: GradScaler("cpu", enabled=False))

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context manager for the forward pass."""
        # The weights' own dtype needs no casts; autocast is for lower precisions only.
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast_dtype)


@dataclass(frozen=True)
class Cadence:
    """How often something is due, in steps or minutes; never if both are None."""

    steps: int | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class Probe:
    """What one real forward and backward pass showed, operator by operator.

    `operators` counts ATen operators; `matmul_dtypes` the operand dtypes of matrix products and
    convolutions; `block_calls` how often each block's forward ran (2 under checkpointing);
    `saved_bytes` what autograd and checkpointing kept for the backward pass; `compiled_calls` how
    often each block ran compiled. Operators are counted with the blocks in eager mode, because
    those inside a compiled block cannot be observed.
    """

    operators: Counter[str]
    matmul_dtypes: Counter[str]
    block_calls: tuple[int, ...]
    saved_bytes: int
    compiled_calls: tuple[int, ...] = ()


class AdaptedLayer(Protocol):
    """A linear layer with a LoRA adapter beside its frozen weight."""

    weight: nn.Parameter
    is_merged: bool

    def whole_weight(self) -> Tensor:
        """Return the merged weight, in the layout in which the weight is stored."""
        ...


@dataclass(frozen=True)
class Lora:
    """The layers whose weights train as adapters beside a frozen base."""

    layers: Sequence[AdaptedLayer]


class HalfWeights(Protocol):
    """Weights that the model holds in bf16 while an optimizer updates fp32 copies of them."""

    master_weights: dict[str, nn.Parameter]
    """The fp32 copies that persist between steps, by name."""

    def fp32_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model holds fp32 weights; changes to them are kept."""
        ...

    def upcast_weights(self) -> None:
        """Give the model fp32 weights permanently."""
        ...

    def build(
        self, plainly: Callable[[nn.Module], torch.optim.Optimizer], model: nn.Module
    ) -> torch.optim.Optimizer:
        """Build an optimizer on the fp32 copies; `plainly` builds one for a model's weights."""
        ...


class Progress(TypedDict, total=False):
    """Values that survive a resume, as plain JSON; a key is missing until it is first set."""

    trained_s: float
    best_loss: float
    since_best: int
    """Validations since the best one."""
    validation: dict[str, float]
    """The metrics of the last validation and its `step`."""
    skipped: list[int]
    """Recent steps whose update was skipped because of NaN."""
    skipped_in_a_row: int


@dataclass
class TrainState:
    """Everything the loop needs; after assembly, training changes little but its tensors."""

    config: RunConfig
    folder: Path
    machine: Device
    device: torch.device
    family: ModelFamily
    model: nn.Module
    corpus: Corpus
    optimizer: torch.optim.Optimizer
    optimizer_spec: OptimizerSpec
    optimizer_options: Options
    base_lr: float
    schedule: Schedule
    schedule_options: Options
    planned_steps: int
    """The length of the schedule; later changes of `last_step` leave the curve as it is."""
    train_batches: StepBatches
    val_batches: StepBatches | None
    first_step: int
    last_step: int
    # What follows defaults to the simplest run: one process, fp32, no average.
    world: World = World()
    precision: Precision = field(default_factory=Precision)
    average: dict[str, torch.Tensor] | None = None
    """Exponential moving average (EMA) of the parameters by name, or None without EMA."""
    validate_every: Cadence = Cadence()
    save_every: Cadence = Cadence()
    preview_every: Cadence = Cadence()
    preview_text: str = ""
    preview_speaker: str = ""
    lora: Lora | None = None
    half_weights: HalfWeights | None = None
    data_hash: str = ""
    """Hash of everything that determines the clips and their features."""
    adapted: RunAdapted = RunAdapted(0, "")
    """What the run changed automatically to recover from NaN and from running out of memory."""
    progress: Progress = field(default_factory=Progress)

    @property
    def master_weights(self) -> dict[str, nn.Parameter]:
        """The fp32 master copies, by name, of weights that the model holds in bf16."""
        return {} if self.half_weights is None else self.half_weights.master_weights
