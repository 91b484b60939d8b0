"""The state of an assembled run: everything that is decided before the first step."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from trainer.core.device import Device
from trainer.core.ema import start_average
from trainer.core.events import RunAdapted
from trainer.core.run_config import RunConfig
from trainer.core.specs import Corpus, ModelFamily, OptimizerSpec
from trainer.core.types import Batch

# The order in which optimizations are applied: what is compiled must already have its final modules
# and dtypes.
STAGES = ("backend", "model", "precision", "compile", "data")


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

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
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


def _ignore_part(part: str) -> None:
    """Do nothing: this step is not timed."""


def _keep_weights() -> None:
    """Do nothing: the weights are fp32 already."""


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
    base_lr: float
    lr_factor: Callable[[int], float]
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
    merged_lora: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context in which the model holds merged weights, with LoRA adapters added in."""
    has_lora: bool = False
    """Whether training keeps weights in parts (base and adapter) that `folded` merges."""
    fp32_weights: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context in which the model holds fp32 weights, even if it trains in bf16."""
    master_weights: dict[str, nn.Parameter] = field(default_factory=dict)
    """The fp32 master copies, by name, of weights that the model holds in bf16."""
    upcast_weights: Callable[[], None] = _keep_weights
    """Converts the model's weights to fp32 permanently."""
    build_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    """Builds the run's optimizer for the trainable parameters of a model."""
    data_hash: str = ""
    """Hash of everything that determines the clips and their features."""
    adapted: RunAdapted = RunAdapted(0, "")
    """What the run changed automatically to recover from running out of memory; see `adapting`."""
    begin_part: Callable[[str], None] = _ignore_part
    """Called when a part of a step begins: `data`, `forward`, `backward` or `update`."""
    progress: dict[str, Any] = field(default_factory=dict)
    """Values that survive a resume, as plain JSON: best loss, patience, seconds trained."""

    def train_other_weights(self) -> None:
        """Rebuild the optimizer and the average after the set of trainable weights changed."""
        if self.build_optimizer is None:
            raise ValueError("this train state does not know how to build its optimizer")
        self.optimizer = self.build_optimizer(self.model)
        # The old average may hold weights that are frozen now, and lacks the new adapters.
        if self.average is not None:
            self.average = start_average(self.model)

    def trained_weights(self) -> dict[str, nn.Parameter]:
        """Return the trained weights by name, using the fp32 master copy where there is one."""
        return {
            # The bf16 copy is only a rounded view of the fp32 one that the optimizer updates.
            name: self.master_weights.get(name, value)
            for name, value in self.model.named_parameters()
            if value.requires_grad
        }


def has_other_weights(state: TrainState) -> bool:
    """Whether evaluation uses other weights than training: EMA, Schedule-Free's or merged LoRA."""
    has_mode = state.optimizer_spec.set_mode is not None
    return state.average is not None or has_mode or state.has_lora


@contextmanager
def evaluation_weights(state: TrainState) -> Iterator[None]:
    """Switch the model to evaluation mode and evaluation weights, and back bit for bit."""
    with state.fp32_weights():
        was_training = state.model.training
        # The old mode is restored below, because it need not have been training mode.
        state.model.eval()
        try:
            with _other_weights(state):
                yield
        finally:
            state.model.train(was_training)


@contextmanager
def _other_weights(state: TrainState) -> Iterator[None]:
    if not has_other_weights(state):
        yield
        return
    named = state.model.named_parameters()
    # Frozen weights are the same in training and evaluation, so copying them wastes memory.
    parameters = {name: value for name, value in named if value.requires_grad}
    # Copied, because Schedule-Free's own way back is an interpolation that loses precision.
    kept = {name: value.detach().clone() for name, value in parameters.items()}
    if state.optimizer_spec.set_mode is not None:
        state.optimizer_spec.set_mode(state.optimizer, False)
    # After set_mode, because the average, where there is one, is what evaluation should use.
    if state.average is not None:
        _copy_into(parameters, state.average)
    try:
        with state.merged_lora():
            yield
    finally:
        if state.optimizer_spec.set_mode is not None:
            state.optimizer_spec.set_mode(state.optimizer, True)
        _copy_into(parameters, kept)  # last: it undoes the rounding of set_mode's way back


def _copy_into(parameters: dict[str, torch.nn.Parameter], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
