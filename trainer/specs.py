"""Specs: what a model family, an optimizer, an optimization and a schedule must offer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trainer.data.types import Batch, Clip, Features
from trainer.device import Device
from trainer.events import Event

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainer.setup import Probe, Setup

Progress = Callable[[str, int, int], None]
"""Called as (phase, done, total) from long work before the first step."""

Draw = Callable[[str, np.random.Generator, np.random.Generator], Features]
"""(clip id, random numbers of the step, those of the clip in the step) -> what the batch holds.

What all clips of a step share is drawn from the first; it starts anew for every clip.
"""


class Export(Protocol):
    """Writes a checkpoint folder; see `ModelFamily`."""

    def __call__(
        self,
        model: "nn.Module",
        facts: dict[str, Any],
        folder: Path,
        weights: "dict[str, Tensor] | None" = None,
        /,
    ) -> None:
        """Write the model's own weights, or those given in their place."""
        ...


class Featurizer(Protocol):
    """Clip -> Features; deterministic and picklable, so that workers can fill the cache.

    Raises DataError for a clip that turns out unusable; the ledger then names it.
    """

    fingerprint: str
    """Hash of all that determines the features of a clip besides its audio, text and speaker."""

    def __call__(self, clip: Clip) -> Features:
        """Compute the features of one clip."""
        ...


@dataclass
class Corpus:
    """What a family learns of a manifest as a whole before training.

    `facts` is JSON (symbols, statistics, sizes, and `speakers`: objects with a `name`) and travels
    with every checkpoint as `config.json`; `features` holds one entry a usable clip, ready for
    `collate`; `unusable` says why a clip had to be left out.
    """

    facts: dict[str, Any]
    features: dict[str, Features]
    unusable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Speech:
    """Synthesised audio: `wave` is float32 (T_wav,) within -1..1."""

    wave: np.ndarray
    sample_rate: int


@dataclass(frozen=True)
class Picture:
    """What a family draws for a preview: an SVG document, and what it shows in a sentence."""

    svg: str
    words: str


@dataclass(frozen=True)
class Reading:
    """A text as a model reads it: `cleaned`, in `pieces`, and the `unknown` letters among them.

    Unknown is what the base never learned; a family may leave such a clip out, or learn it anew.
    """

    cleaned: str
    pieces: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Rehearsal:
    """How a family is tried at a real size without its clips and without its weights.

    sizes: names of sizes for which nothing has to be at hand, from small to large.
    longest_s: seconds of the longest usual clip.
    imagine(base, options, clips, size) -> Corpus as `survey` returns it, with random features of
        the lengths the clips have; their audio need not exist, an empty text has a usual length.
        An empty size is that of the base and the options.
    network(options, facts) -> the model that `load` fills, made without reading a file, so that it
        may be made of tensors without contents.
    """

    sizes: tuple[str, ...]
    longest_s: float
    imagine: Callable[[Path | None, Any, Sequence[Clip], str], Corpus]
    network: "Callable[[Any, dict[str, Any]], nn.Module]"


@dataclass(frozen=True)
class ModelFamily:
    """An architecture with its featurizer, losses and export.

    load(base, options, facts) -> model: weights from a base checkpoint folder, else fresh ones.
    featurizer(base, options) -> Featurizer.
    survey(features by clip id, clips, options, base, progress) -> Corpus: alignment, symbols,
        speakers, statistics; deterministic, cached by the fingerprints of what goes in.
    counts(features) -> {name: valid items of the clip}; batches are bucketed by the first entry.
    collate(list of features) -> {name: padded tensor} on the CPU, masks and lengths included.
    losses(model, batch) -> {name: weighted scalar}: sums divided by `batch.totals`, so that they
        add up over micro-steps and ranks to the step's loss.
    validate(model, batch) -> (losses, {name: scalar}): the losses and further metrics of one
        forward pass, normalised likewise.
    blocks(model) -> modules that checkpointing and compile may wrap.
    synthesize(model, facts, text, speaker) -> Speech; DataError for unusable text or speaker.
    export(model, facts, folder, weights): `model.safetensors` and `config.json` that `load` and
        other tools read; model.safetensors holds the whole state_dict, or `weights` in its place:
        a copy, written by another thread while the model trains on.

    What only some families need:

    draws(features by clip id) -> Draw: what is drawn anew at every step, such as a reference clip
        of the same speaker; without it a batch holds the clips' features as they are.
    checks(model, facts) -> {name: number}: validation metrics of the corpus as a whole, once a
        validation, on the main process.
    publish(model, facts, folder, bf16): the folder other tools read, if it differs from `export`.
    terms(base, options) -> the licences of the weights that are used, in sentences; empty: none.
    stream(model, facts, text, speaker) -> what `synthesize` returns in pieces, each as soon as it
        can be heard; without it speech comes in one piece.
    silent(model) -> why the model makes no audio here, and what to do; `synthesize` then raises
        DataError, and previews have no sound. Empty, or no such function: it speaks.
    illustrate(model, batches) -> Picture: what can be seen of val batches, shown with the previews.
    reads(base, options, texts with their languages) -> how each is read, for the page to show.
    rehearsal: how `estimate` and `measure` try the family before there are clips and weights.
    """

    name: str
    label: str
    summary: str
    options: type
    licence: str
    load: "Callable[[Path | None, Any, dict[str, Any]], nn.Module]"
    featurizer: Callable[[Path | None, Any], Featurizer]
    survey: "Callable[[dict[str, Features], Sequence[Clip], Any, Path | None, Progress], Corpus]"
    counts: Callable[[Features], dict[str, float]]
    collate: "Callable[[Sequence[Features]], dict[str, Tensor]]"
    losses: "Callable[[nn.Module, Batch], dict[str, Tensor]]"
    validate: "Callable[[nn.Module, Batch], tuple[dict[str, Tensor], dict[str, Tensor]]]"
    blocks: "Callable[[nn.Module], list[nn.Module]]"
    synthesize: "Callable[[nn.Module, dict[str, Any], str, str], Speech]"
    export: Export
    learning_rates: dict[str, float] = field(default_factory=dict)
    draws: Callable[[Mapping[str, Features]], Draw] | None = None
    checks: "Callable[[nn.Module, dict[str, Any]], dict[str, float]] | None" = None
    publish: "Callable[[nn.Module, dict[str, Any], Path, bool], None] | None" = None
    terms: "Callable[[Path | None, Any], str] | None" = None
    stream: "Callable[[nn.Module, dict[str, Any], str, str], Iterator[Speech]] | None" = None
    silent: "Callable[[nn.Module], str] | None" = None
    illustrate: "Callable[[nn.Module, Iterable[Batch]], Picture] | None" = None
    reads: Callable[[Path | None, Any, Sequence[tuple[str, str]]], list[Reading]] | None = None
    rehearsal: Rehearsal | None = None


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer.

    build(param_groups, options, device) -> torch optimizer; each group brings its `weight_decay`.
    set_mode(optimizer, training): Schedule-Free needs it around validation and saving.
    schedules: which schedules apply; empty means all of them.
    state_bytes: bytes of state per parameter in fp32 training.
    default_lr: where nothing is known of the model family, for large pretrained models.
    rate_follows: the optimizer to whose usual rate in a family this one's is in proportion.
    in_parts: whether `step` may be called with the gradients of some weights at a time, as none
        looks at another's; where weights are kept in fewer bits, that saves memory.
    effective_lr(optimizer) -> the rate really applied (Prodigy multiplies by d).
    experimental: for research; little is known of it in fine-tuning.
    warning: what a person should know before choosing it, in sentences; empty: nothing.
    """

    name: str
    label: str
    summary: str
    paper: str
    options: type
    build: "Callable[[list[dict[str, Any]], Any, torch.device], torch.optim.Optimizer]"
    state_bytes: float
    default_lr: float
    rate_follows: str = ""
    schedules: tuple[str, ...] = ()
    set_mode: "Callable[[torch.optim.Optimizer, bool], None] | None" = None
    effective_lr: "Callable[[torch.optim.Optimizer], float] | None" = None
    experimental: bool = False
    warning: str = ""
    in_parts: bool = False

    @property
    def advice(self) -> str:
        """What to know before choosing it, in sentences; may be empty."""
        return " ".join(filter(None, ("For research." if self.experimental else "", self.warning)))


@dataclass(frozen=True)
class State:
    """What is really on: measured on the assembled model, not what was asked for."""

    on: bool
    detail: str


@dataclass(frozen=True)
class Optimization:
    """One checkbox that saves time or memory.

    unavailable(device) -> reason or None. apply(setup, options). state(setup, probe) -> State.
    `stage` fixes the order: backend, model, precision, compile, data. `exact`: the loss curve must
    stay the same within rounding.

    refuse(device, options) -> why these options cannot work there, or None; asked before a run
        folder is made.
    settle(setup, options, emit): what can only be decided once everything is in place and the
        newest checkpoint restored, such as whether a measured gain pays for the steps that remain.
    """

    name: str
    label: str
    help: str
    stage: str
    exact: bool
    options: type
    unavailable: Callable[[Device], str | None]
    apply: "Callable[[Setup, Any], None]"
    state: "Callable[[Setup, Probe], State]"
    default_on: bool = False
    refuse: Callable[[Device, Any], str | None] | None = None
    settle: "Callable[[Setup, Any, Callable[[Event], None]], None] | None" = None


@dataclass(frozen=True)
class Schedule:
    """A pure function (step from 1, total steps, options) -> learning-rate factor."""

    name: str
    label: str
    summary: str
    options: type
    factor: Callable[[int, int, Any], float]
