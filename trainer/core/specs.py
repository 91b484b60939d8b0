"""The interfaces of registry entries: model families, optimizers, optimizations, schedules."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trainer.core.device import Device
from trainer.core.events import Emit
from trainer.core.options import Options
from trainer.core.types import Batch, Clip, Features

if TYPE_CHECKING:
    # For type checkers only: names, labels and options must be readable without loading torch.
    import torch
    from torch import Tensor, nn

    from trainer.core.train_state import Probe, TrainState

# The order in which optimizations are applied: what is compiled must already have its final modules
# and dtypes.
STAGES = ("backend", "model", "precision", "compile", "data")

Facts = Any
"""JSON values that a family saves with every checkpoint; each family has its own TypedDict."""

Progress = Callable[[str, int, int], None]
"""Called as (phase, done, total) during long work before the first step."""

Draw = Callable[[str, np.random.Generator, np.random.Generator], Features]
"""(clip id, generator of the step, generator of the clip in the step) -> Features for the batch.

The step's generator is reset for every clip, so all clips of a step draw the same values from it.
"""


class Export(Protocol):
    """Writes a checkpoint folder; see `ModelFamily`."""

    def __call__(
        self,
        model: "nn.Module",
        facts: Facts,
        folder: Path,
        # Positional only, so that every family may name its parameters as it likes.
        weights: "dict[str, Tensor] | None" = None,
        /,
    ) -> None:
        """Write the model's own weights, or the given ones instead."""
        ...


class Featurizer(Protocol):
    """Computes the features of a clip; deterministic and picklable, so workers can fill the cache.

    Raises DataError for an unusable clip, which is then listed in the ledger.
    """

    fingerprint: str
    """Hash of everything that determines a clip's features besides its audio, text and speaker."""

    def __call__(self, clip: Clip) -> Features:
        """Compute the features of one clip."""
        ...


@dataclass
class Corpus:
    """What a family computes from the whole manifest before training.

    `facts` is JSON (symbols, statistics, sizes, and `speakers`: objects with a `name`) and is saved
    with every checkpoint as `config.json`. `features` holds one entry per usable clip, ready for
    `collate`. `unusable` maps clip ids to the reason why they are left out.
    """

    facts: Facts
    features: dict[str, Features]
    unusable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Speech:
    """Synthesized audio: `wave` is float32 (T_wav,) in the range -1..1."""

    wave: np.ndarray
    sample_rate: int


@dataclass(frozen=True)
class Picture:
    """The image of a preview: an SVG document and a sentence that describes it."""

    svg: str
    words: str


@dataclass(frozen=True)
class TextPreview:
    """A text as the model sees it: `cleaned`, as token `pieces`, and its `unknown` characters.

    Unknown characters are those the base never learned; a family may leave such a clip out or learn
    them from scratch.
    """

    cleaned: str
    pieces: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class SyntheticSpec:
    """How to try a family at its real size without clips or weights.

    sizes: names of model sizes that need no files, from small to large.
    longest_s: duration of the longest usual clip in seconds.
    imagine(base, options, clips, size) -> Corpus as `survey` returns it, with random features of
        the clips' lengths. The audio need not exist; an empty text gets a usual length. An empty
        size means the size of the base and the options.
    network(options, facts) -> the model that `load` would fill, built without reading a file, so
        that it can consist of fake tensors.
    """

    sizes: tuple[str, ...]
    longest_s: float
    make_synthetic: Callable[[Path | None, Options, Sequence[Clip], str], Corpus]
    network: "Callable[[Options, Facts], nn.Module]"


@dataclass(frozen=True)
class ModelFamily:
    """An architecture with its featurizer, losses and export.

    load(base, options, facts) -> model with weights from a base checkpoint folder, or random ones.
    featurizer(base, options) -> Featurizer.
    survey(features by clip id, clips, options, base, progress) -> Corpus: alignment, symbols,
        speakers, statistics; deterministic, cached by the fingerprints of its inputs.
    counts(features) -> {name: valid items of the clip}; batches are bucketed by the first entry.
    collate(list of features) -> {name: padded tensor} on the CPU, masks and lengths included.
    losses(model, batch) -> {name: weighted scalar}: sums divided by `batch.totals`, so that they
        add up over micro-steps and ranks to the step's loss.
    validate(model, batch) -> (losses, {name: scalar}): the losses and further metrics of one
        forward pass, normalized the same way.
    blocks(model) -> modules that checkpointing and compile may wrap.
    synthesize(model, facts, text, speaker) -> Speech; DataError for unusable text or speaker.
    export(model, facts, folder, weights): writes `model.safetensors` and `config.json`, which
        `load` and other tools read. model.safetensors holds the whole state_dict, or `weights`
        instead: a copy that another thread writes while training continues.

    Only some families need these:

    draws(features by clip id) -> Draw: features drawn again at every step, such as a reference clip
        of the same speaker; without it a batch holds the clips' features unchanged.
    checks(model, facts) -> {name: number}: metrics of the corpus as a whole, computed once per
        validation on the main process.
    publish(model, facts, folder, bf16): the folder other tools read, if it differs from `export`.
    terms(base, options) -> the licences of the weights in use, in sentences; empty: none.
    stream(model, facts, text, speaker) -> the result of `synthesize` in chunks, each as soon as it
        is ready; without it speech comes in one piece.
    silent(model) -> why the model cannot speak here, and what to do; `synthesize` then raises
        DataError and previews have no audio. Empty, or no such function: it speaks.
    illustrate(model, batches) -> Picture drawn from validation batches, shown with the previews.
    reads(base, options, texts with their languages) -> how each text is read, for the page to show.
    rehearsal: how `estimate` and `measure` try the family before there are clips or weights.
    """

    name: str
    label: str
    summary: str
    options: type
    licence: str
    load: "Callable[[Path | None, Options, Facts], nn.Module]"
    featurizer: Callable[[Path | None, Options], Featurizer]
    survey: (
        "Callable[[dict[str, Features], Sequence[Clip], Options, Path | None, Progress], Corpus]"
    )
    counts: Callable[[Features], dict[str, float]]
    collate: "Callable[[Sequence[Features]], dict[str, Tensor]]"
    losses: "Callable[[nn.Module, Batch], dict[str, Tensor]]"
    validate: "Callable[[nn.Module, Batch], tuple[dict[str, Tensor], dict[str, Tensor]]]"
    blocks: "Callable[[nn.Module], list[nn.Module]]"
    synthesize: "Callable[[nn.Module, Facts, str, str], Speech]"
    export: Export  # a Protocol, because a Callable cannot express the optional last argument
    learning_rates: dict[str, float] = field(default_factory=dict)  # by the optimizer's name
    draws: Callable[[Mapping[str, Features]], Draw] | None = None
    # Once is enough, because every rank has the same model and the same corpus.
    checks: "Callable[[nn.Module, Facts], dict[str, float]] | None" = None
    # Apart from `export`, which must stay readable by `load` whatever other tools expect.
    publish: "Callable[[nn.Module, Facts, Path, bool], None] | None" = None
    terms: "Callable[[Path | None, Options], str] | None" = None
    stream: "Callable[[nn.Module, Facts, str, str], Iterator[Speech]] | None" = None
    # Asked of the model and not of the family: its files and options decide whether it speaks.
    silent: "Callable[[nn.Module], str] | None" = None
    illustrate: "Callable[[nn.Module, Iterable[Batch]], Picture] | None" = None
    preview_texts: (
        Callable[[Path | None, Options, Sequence[tuple[str, str]]], list[TextPreview]] | None
    ) = None
    synthetic: SyntheticSpec | None = None


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer.

    build(param_groups, options, device) -> torch optimizer; each group has its own `weight_decay`.
    set_mode(optimizer, training): Schedule-Free needs it around validation and saving.
    schedules: names of the schedules that suit it; empty means all.
    state_bytes: bytes of optimizer state per parameter in fp32 training.
    default_lr: learning rate for large pretrained models, if the family names none.
    rate_follows: name of the optimizer whose usual rate in a family this one's is proportional to.
    in_parts: whether `step` may be called with the gradients of a few weights at a time, because no
        update depends on another weight; with bf16 weights this saves memory.
    effective_lr(optimizer) -> the rate that is really applied (Prodigy multiplies by d).
    experimental: for research; little is known about it in fine-tuning.
    warning: what to know before choosing it, in sentences; may be empty.
    """

    name: str
    label: str
    summary: str
    paper: str
    options: type
    build: "Callable[[list[dict[str, Any]], Options, torch.device], torch.optim.Optimizer]"
    state_bytes: float  # not whole: 8-bit and factored states take 2.06 and 0.03 bytes
    default_lr: float
    rate_follows: str = ""
    schedules: tuple[str, ...] = ()
    set_mode: "Callable[[torch.optim.Optimizer, bool], None] | None" = None
    effective_lr: "Callable[[torch.optim.Optimizer], float] | None" = None
    experimental: bool = False
    warning: str = ""
    in_parts: bool = False  # a norm over all weights, for example, needs them together

    @property
    def advice(self) -> str:
        """What to know before choosing the optimizer, in sentences; may be empty."""
        return " ".join(filter(None, ("For research." if self.experimental else "", self.warning)))


@dataclass(frozen=True)
class OptimizationStatus:
    """Whether an optimization is really active, as measured on the assembled model."""

    on: bool
    detail: str


@dataclass(frozen=True)
class Optimization:
    """One checkbox that saves time or memory.

    apply(state, options). status(state, probe) -> OptimizationStatus, measured by one watched
    forward and backward pass. unavailable(device) -> reason or None; by default always None.
    `stage` fixes the order: backend, model, precision, compile, data. `exact`: the loss curve must
    stay the same within rounding.

    refuse(device, options) -> why these options cannot work on the device, or None; called before
        a run folder is created.
    finalize(state, options, emit): decides what needs the assembled run with its latest checkpoint
        restored, such as whether a measured speed-up pays off in the remaining steps.
    """

    name: str
    label: str
    help: str
    stage: str  # one of STAGES
    # Bit for bit would be too strict: other kernels sum in another order.
    exact: bool
    options: type
    apply: "Callable[[TrainState, Options], None]"
    status: "Callable[[TrainState, Probe], OptimizationStatus]"
    unavailable: Callable[[Device], str | None] = lambda device: None
    default_on: bool = False
    refuse: Callable[[Device, Options], str | None] | None = None
    finalize: "Callable[[TrainState, Options, Emit], None] | None" = None


@dataclass(frozen=True)
class Schedule:
    """A pure function (step from 1, total steps, options) -> learning-rate factor."""

    name: str
    label: str
    summary: str
    options: type
    # Of the step alone, without memory, so that a resume continues the curve exactly.
    factor: Callable[[int, int, Options], float]
