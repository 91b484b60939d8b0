"""What makes a step fast, counted instead of timed: operators, host reads, positions, bytes.

A busy machine changes none of these numbers, so they may gate; timings are told by scripts.
"""

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.helpers.no_reads import copies_to_the_host
from trainer.core.events import EventLog, StepDone
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.core.train_state import TrainState, World
from trainer.core.types import Batch
from trainer.data.features.loader import BatchPlan, ClipBatches
from trainer.models._layers.attention import SelfAttention
from trainer.models.xtts.network.gpt import XttsGpt
from trainer.models.xtts.network.sizes import CODE_STRIDE, SAMPLE_RATE, GptSizes
from trainer.models.xtts.training.batches import counts, make_collate
from trainer.models.xtts.training.losses import losses
from trainer.runs.run import Run
from trainer.training.assemble import assemble
from trainer.training.loop import train_step
from trainer.training.metrics import StepMetrics

DEMO = Path(__file__).parent.parent.parent / "assets" / "demo"
NUM_CLIPS, BATCH_SIZE = 12, 4
FAMILIES = ("xtts", "fastspeech2")
OPTIMIZATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fast": {"sdpa": {}, "mixed_precision": {"mode": "bf16"}},
}

HOST_READS = {
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::item",
    "aten::masked_select", "aten::nonzero", "aten::_unique2", "aten::unique_dim",
}  # fmt: skip
"""Operators whose result the host must know before it can go on."""

MOST_OPERATORS = {"xtts": 480, "fastspeech2": 700}
"""Operators of one step of the smallest network that compute or copy; views cost nothing."""

MOST_OPERATORS_A_LAYER = {"fused": 30, "plain": 72}
"""Forward and backward of one block of the trunk: fused attention without dropout, plain with it.

PyTorch has no fused kernel with dropout on a CPU.
"""

MOST_PADDED_TO_REAL = 1.05
MOST_BYTES_AN_EVENT = 2000


class Watch(TorchDispatchMode):
    """Counts operators that are no views, and remembers the shapes of truth values they read."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.masks: set[tuple[int, ...]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note the operator and run it."""
        name = func.name().split(".")[0]
        if not func.is_view:
            self.operators[name] += 1
        masks = [value for value in tree_leaves((args, kwargs)) if _is_mask(value)]
        self.masks |= {tuple(value.shape) for value in masks}
        if masks and name.startswith("aten::index"):
            # How many values a mask picks is known when it is read.
            self.operators["aten::nonzero"] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        """All operators that compute or copy."""
        return self.operators.total()


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A feature cache that all tests here share."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TIMBRE_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def prepare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], TrainState]]:
    """Assemble runs on a few demo clips, each but once."""
    setups: dict[tuple[str, str], TrainState] = {}

    def make(family: str, speed: str) -> TrainState:
        if (family, speed) not in setups:
            setups[family, speed] = assemble_run(tmp_path_factory.mktemp("run"), family, speed)
        return setups[family, speed]

    yield make
    for state in setups.values():
        state.train_batches.close()


def demo_rows() -> list[list[str]]:
    """Return the rows of the demo corpus."""
    with (DEMO / "train.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="|"))[1:]


def assemble_run(folder: Path, family: str, speed: str) -> TrainState:
    """Assemble a run without validation on the first demo clips."""
    lines = ["audio_file|text|speaker_name"]
    lines += ["|".join([str(DEMO / name), *rest]) for name, *rest in demo_rows()[:NUM_CLIPS]]
    (folder / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = RunConfig(
        data=DataConfig(str(folder / "train.csv"), eval_fraction=0.0),
        training=TrainingConfig(
            steps=8, batch_size=BATCH_SIZE, preview_every="never", device="cpu", loader_workers=0
        ),
        family=Choice(family),
        optimizer=Choice("adamw"),
        optimizations=OPTIMIZATIONS[speed],
    )
    run = Run.create(folder / "run", config)
    return assemble(run.folder, config, world=World(), emit=lambda event: None)


def watch_step(state: TrainState, step: int) -> Watch:
    """Run a step of training and return what it did."""
    with Watch() as watch:
        train_step(state, step)
    return watch


@pytest.mark.parametrize("speed", OPTIMIZATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_steady_step_reads_nothing_back(
    prepare: Callable[[str, str], TrainState], family: str, speed: str
) -> None:
    state = prepare(family, speed)
    train_step(state, 1)

    with copies_to_the_host() as copies:
        watch = watch_step(state, 2)

    assert watch.total > 100
    assert copies == []
    assert not HOST_READS & set(watch.operators)


@pytest.mark.parametrize(
    "read", [lambda x: x.item(), lambda x: bool(x), lambda x: x.expand(2)[x.expand(2) > 0]]
)
def test_a_read_would_be_seen(read: Callable[[Tensor], Any]) -> None:
    with Watch() as watch:
        read(torch.ones(()))

    assert HOST_READS & set(watch.operators)


@pytest.mark.parametrize("name", ["tolist", "numpy"])
def test_a_copy_to_the_host_would_be_seen(name: str) -> None:
    with copies_to_the_host() as copies:
        getattr(torch.ones(2), name)()

    assert copies == [name]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_needs_no_more_operators_than_it_did(
    prepare: Callable[[str, str], TrainState], family: str
) -> None:
    state = prepare(family, "plain")
    train_step(state, 1)

    counts_of_steps = [watch_step(state, step).total for step in (2, 3)]

    assert counts_of_steps[0] == counts_of_steps[1] <= MOST_OPERATORS[family]


def small_network(layers: int, dropout: float, use_sdpa: bool) -> XttsGpt:
    """Return a GPT for training that has everything but size."""
    sizes = GptSizes(
        layers=layers, width=64, heads=2, num_text_tokens=300, max_text_tokens=40,
        max_audio_tokens=60, conditioning_layers=1, perceiver_heads=2,
    )  # fmt: skip
    network = XttsGpt(sizes, dropout).train()
    for module in network.modules():
        if isinstance(module, SelfAttention):
            module.use_sdpa = use_sdpa
    return network


def small_batch(network: XttsGpt) -> Batch:
    """Return three clips of unequal lengths."""
    clips = []
    for number, (text, audio) in enumerate(((7, 23), (19, 41), (11, 12))):
        draw = np.random.default_rng(number)
        clips.append(
            {
                "tokens": draw.integers(2, 261, text, dtype=np.int32),
                "codes": draw.integers(0, 1024, audio).astype(np.int16),
                "masked": np.zeros(2, np.int32),
                "reference": draw.normal(size=(80, 50)).astype(np.float16),
                "reference_frames": np.array(50, np.int32),
            }
        )
    totals: Counter[str] = Counter()
    for clip in clips:
        totals.update({name: int(count) for name, count in counts(clip).items()})
    tensors = make_collate(network.sizes)(clips)
    return Batch(tensors, ["a", "b", "c"], {name: float(n) for name, n in totals.items()}, 3.0)


def watch_losses(network: XttsGpt, batch: Batch) -> Watch:
    """Run forward and backward and return what they did."""
    with Watch() as watch:
        torch.stack(list(losses(network, batch).values())).sum().backward()
    return watch


@pytest.mark.parametrize(("kind", "dropout"), [("fused", 0.0), ("plain", 0.1)])
def test_a_layer_of_the_trunk_needs_few_operators(kind: str, dropout: float) -> None:
    watched = []
    for layers in (2, 3):
        network = small_network(layers, dropout, use_sdpa=kind == "fused")
        watched.append(watch_losses(network, small_batch(network)))

    assert 0 < watched[1].total - watched[0].total <= MOST_OPERATORS_A_LAYER[kind]
    added = watched[1].operators - watched[0].operators
    assert added["aten::gelu"] == 1 and added["aten::gelu_backward"] == 1


def test_the_trunk_sees_no_mask_and_fused_attention_runs_without_one() -> None:
    network = small_network(2, 0.0, use_sdpa=True)
    batch = small_batch(network)
    length = batch["layout"].shape[1]
    # What says where rows end is there for whoever wants to know; the network does not.
    del batch.tensors["position_mask"]

    watch = watch_losses(network, batch)

    assert watch.operators["aten::_scaled_dot_product_flash_attention_for_cpu"] >= 2
    assert not [shape for shape in watch.masks if length in shape]


def test_heads_see_real_positions_only() -> None:
    network = small_network(2, 0.1, use_sdpa=False)
    batch = small_batch(network)
    seen: dict[str, torch.Size] = {}

    def note(module: nn.Module, args: tuple[Tensor]) -> None:
        seen["text_head" if module is network.text_head else "mel_head"] = args[0].shape

    network.text_head.register_forward_pre_hook(note)
    network.mel_head.register_forward_pre_hook(note)

    losses(network, batch)

    rows, length = batch["layout"].shape
    assert seen["text_head"][:-1] == (batch.totals["text"],)
    assert seen["mel_head"][:-1] == (batch.totals["audio"],)
    assert batch.totals["text"] + batch.totals["audio"] < rows * length


def test_the_optimizer_and_the_gradient_norm_take_a_handful_of_operators(
    prepare: Callable[[str, str], TrainState],
) -> None:
    state = prepare("xtts", "plain")
    train_step(state, 1)

    watch = watch_step(state, 2)

    assert watch.operators["aten::_fused_adamw_"] == len(state.optimizer.param_groups)
    assert watch.operators["aten::_foreach_norm"] == 1
    assert watch.operators["aten::_foreach_mul_"] == 1


def test_rows_hold_little_padding() -> None:
    features, seconds = {}, {}
    for name, text, _ in demo_rows():
        duration = soundfile.info(DEMO / name).duration
        features[name] = {
            "tokens": np.zeros(len(text), np.int32),
            "codes": np.zeros(math.ceil(duration * SAMPLE_RATE / CODE_STRIDE), np.int16),
            "masked": np.zeros(2, np.int32),
            "reference": np.zeros((80, 1), np.float16),
            "reference_frames": np.array(1, np.int32),
        }
        seconds[name] = duration
    plan = BatchPlan(8, 1, 1, 0, 1234, True)
    batches = ClipBatches(plan, features, counts, make_collate(GptSizes()), audio_s=seconds)

    masks = [
        batch["position_mask"]
        for step in range(1, batches.steps_per_epoch + 1)
        for batch in batches.micro_batches(step)
    ]

    batches.close()
    computed, real = sum(mask.numel() for mask in masks), sum(int(mask.sum()) for mask in masks)
    assert sum(len(mask) for mask in masks) == len(features)
    assert computed / real <= MOST_PADDED_TO_REAL


@pytest.mark.parametrize("family", FAMILIES)
def test_with_features_in_the_cache_no_recording_is_decoded(
    prepare: Callable[[str, str], TrainState],
    family: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare(family, "plain")
    decoded: list[Any] = []
    original = soundfile.SoundFile.read

    def read(self: soundfile.SoundFile, *args: Any, **kwargs: Any) -> Any:
        decoded.append(self.name)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(soundfile.SoundFile, "read", read)

    state = assemble_run(tmp_path, family, "plain")
    for step in range(1, 2 * state.train_batches.steps_per_epoch + 1):
        assert state.train_batches.micro_batches(step)

    state.train_batches.close()
    assert decoded == []
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "empty"))
    (tmp_path / "again").mkdir()
    assemble_run(tmp_path / "again", family, "plain").train_batches.close()
    assert len(set(decoded)) == NUM_CLIPS


@pytest.mark.parametrize("family", FAMILIES)
def test_telemetry_adds_nothing_to_a_step_and_little_after_it(
    prepare: Callable[[str, str], TrainState], family: str, tmp_path: Path
) -> None:
    state = prepare(family, "plain")
    train_step(state, 1)
    bare = watch_step(state, 2)
    log = EventLog(tmp_path / "events.jsonl")
    step_metrics = StepMetrics(state, log.append)

    with Watch() as told:
        metrics = train_step(state, 3)
        measured = told.total
        step_metrics.record(3, metrics)
    step_metrics.flush()

    assert measured == bare.total
    # One copy of all scalars for the host, whatever the size of the network.
    assert told.total - measured <= 2 + len(metrics)
    assert not HOST_READS & set(told.operators)
    size = log.path.stat().st_size
    assert [type(logged.event) for logged in log.follow()] == [StepDone]
    assert 0 < size < MOST_BYTES_AN_EVENT
