"""Every optimization of the catalog: on when applied, off when broken, exact when it says so."""

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.toy import TOY, make_setup
from trainer.core.device import Device
from trainer.core.errors import ConfigError
from trainer.core.options import build_options
from trainer.core.registry import discover
from trainer.core.run_config import RunConfig, TrainingConfig
from trainer.core.specs import STAGES, Optimization, OptimizationStatus
from trainer.core.train_state import Precision, TrainState
from trainer.core.types import Batch
from trainer.models._layers.attention import SelfAttention
from trainer.optimizations._core import compiled_block
from trainer.state.probe import probe
from trainer.training.assemble import check_before_start
from trainer.training.loop import train_step

# The compiler's own look at the gradients of what goes into a block.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

CATALOG = discover("trainer.optimizations", Optimization)
CPU = Device("cpu", 0, "some CPU", 8.0)
TURING = Device("cuda", 0, "a GPU of 2018", 8.0, (7, 5))
HOPPER = Device("cuda", 0, "a GPU of 2022", 80.0, (9, 0))
MAXWELL = Device("cuda", 0, "a GPU of 2014", 4.0, (5, 2))
T = 6
WIDTH = 16
LEVELS = ["light", "medium", "full"]

each_optimization = pytest.mark.parametrize("name", sorted(CATALOG))
each_exact_one = pytest.mark.parametrize(
    "name", sorted(name for name, entry in CATALOG.items() if entry.exact)
)


class _Attention(SelfAttention):
    def __init__(self) -> None:
        super().__init__(num_heads=2)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self.split_heads(part) for part in self.project(x).chunk(3, dim=-1))
        mask = torch.ones(1, 1, 1, x.shape[1], dtype=torch.bool)
        return self.attend(query, key, value, mask)


class _Block(nn.Module):
    """Attention, convolution, dropout and BatchNorm: all that computing twice can get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = _Attention()
        self.filter = nn.Conv1d(T, T, 3, padding=1)
        self.norm = nn.BatchNorm1d(T)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.norm(self.filter(self.attention(x))))


class _Batches:
    steps_per_epoch = 4

    def micro_batches(self, step: int) -> list[Batch]:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4, T, WIDTH, generator=generator)
        return [Batch({"x": x}, [], {"clips": 4.0}, 1.0)]


def _losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (model(batch["x"]) - batch["x"].flip(1)).square().mean()}


def _make_train_state(folder: Path, machine: Device = CPU) -> TrainState:
    train_state = make_setup(folder)
    torch.manual_seed(0)
    train_state.machine = machine
    train_state.model = nn.Sequential(_Block(), _Block(), _Block())
    train_state.family = replace(TOY, losses=_losses, blocks=lambda model: list(model.children()))
    train_state.optimizer = torch.optim.AdamW(train_state.model.parameters())
    train_state.train_batches = _Batches()  # type: ignore[assignment]
    return train_state


def _setup_for(name: str, folder: Path) -> TrainState:
    """Return a TrainState on a machine where the optimization can be had."""
    return _make_train_state(folder, HOPPER if CATALOG[name].unavailable(CPU) else CPU)


def _apply(train_state: TrainState, name: str, **values: Any) -> None:
    entry = CATALOG[name]
    entry.apply(train_state, build_options(entry.options, values, name))


def _state(train_state: TrainState, name: str) -> OptimizationStatus:
    return CATALOG[name].status(
        train_state, probe(train_state, train_state.train_batches.micro_batches(1)[0])
    )


def _train(train_state: TrainState, steps: int) -> list[float]:
    torch.manual_seed(1)
    return [train_step(train_state, step)["error"].item() for step in range(1, steps + 1)]


def _restore_one_block(train_state: TrainState) -> None:
    del vars(train_state.model[1])["forward"]  # type: ignore[index]


def _switch_one_layer_back(train_state: TrainState) -> None:
    train_state.model.get_submodule("1.attention").use_sdpa = False  # type: ignore[assignment]


def _drop_autocast(train_state: TrainState) -> None:
    train_state.precision = Precision()


def _ask_for_full_fp32(train_state: TrainState) -> None:
    torch.set_float32_matmul_precision("highest")


def _stop_timing_kernels(train_state: TrainState) -> None:
    torch.backends.cudnn.benchmark = False


def _thaw_one_layer(train_state: TrainState) -> None:
    train_state.model.get_submodule("1.attention.project").weight.requires_grad_(True)  # type: ignore[operator]


def _let_the_blocks_rest(train_state: TrainState) -> None:
    vars(train_state.model[0])["program"].disable("for a test")  # type: ignore[index]


def _allow_all_memory(train_state: TrainState) -> None:
    torch.cuda.set_per_process_memory_fraction(1.0, 0)


def _allow_kernels_of_any_order(train_state: TrainState) -> None:
    torch.use_deterministic_algorithms(False)


def _update_halves_as_they_are(train_state: TrainState) -> None:
    train_state.optimizer = torch.optim.AdamW(train_state.model.parameters())


BREAKERS: dict[str, Callable[[TrainState], None]] = {
    "gradient_checkpointing": _restore_one_block,
    "sdpa": _switch_one_layer_back,
    "mixed_precision": _drop_autocast,
    "bf16_weights": _update_halves_as_they_are,
    "tf32": _ask_for_full_fp32,
    "cudnn_benchmark": _stop_timing_kernels,
    "memory_limit": _allow_all_memory,
    "compile": _let_the_blocks_rest,
    "lora": _thaw_one_layer,
    "reproducible": _allow_kernels_of_any_order,
}


@pytest.fixture(autouse=True)
def _keep_flags() -> Iterator[None]:
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    cudnn = torch.backends.cudnn
    kept = {name: getattr(cudnn, name) for name in ("allow_tf32", "benchmark", "benchmark_limit")}
    workspace = os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    yield
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if workspace is not None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    for name, value in kept.items():
        setattr(cudnn, name, value)


@pytest.fixture(autouse=True)
def _quick_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Trace the graph, but write no code for it, which would take long."""

    def trace(graph: Any, inputs: list[Any], **how: Any) -> Any:
        return graph.forward

    monkeypatch.setattr(compiled_block, "compile_with_inductor", trace)
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _allocator(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Stand in for the allocator of a GPU, which a machine without one refuses to limit."""
    shares: dict[int, float] = {}

    def set_share(share: float, index: int) -> None:
        shares[index] = share

    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", set_share)
    monkeypatch.setattr(
        torch.cuda, "get_per_process_memory_fraction", lambda index: shares.get(index, 1.0)
    )
    return shares


@each_optimization
def test_the_entry_is_complete(name: str) -> None:
    entry = CATALOG[name]

    assert entry.name == name
    assert entry.stage in STAGES
    assert entry.label
    assert entry.help.endswith(".")
    assert name in BREAKERS, "a new optimization needs a way to break it in this file"


@each_optimization
def test_it_is_off_unless_applied(name: str, tmp_path: Path) -> None:
    state = _state(_setup_for(name, tmp_path), name)

    assert not state.on
    assert state.detail


@each_optimization
def test_it_is_on_when_applied_and_off_when_broken_underneath(name: str, tmp_path: Path) -> None:
    train_state = _setup_for(name, tmp_path)

    _apply(train_state, name)
    applied = _state(train_state, name)
    BREAKERS[name](train_state)
    broken = _state(train_state, name)

    assert applied.on, applied.detail
    assert not broken.on, broken.detail


@each_optimization
def test_training_with_it_lowers_the_loss(name: str, tmp_path: Path) -> None:
    train_state = _setup_for(name, tmp_path)
    _apply(train_state, name)

    losses = _train(train_state, 30)

    assert sum(losses[-5:]) < sum(losses[:5])


@each_optimization
def test_the_keys_of_the_state_dict_stay(name: str, tmp_path: Path) -> None:
    train_state = _setup_for(name, tmp_path)
    before = list(train_state.model.state_dict())

    _apply(train_state, name)

    assert list(train_state.model.state_dict()) == before


@each_exact_one
def test_the_loss_curve_stays_within_rounding(name: str, tmp_path: Path) -> None:
    plain, optimized = _make_train_state(tmp_path), _make_train_state(tmp_path)
    _apply(optimized, name)

    assert _train(optimized, 8) == pytest.approx(_train(plain, 8), rel=1e-5)


def test_all_of_them_together_are_on(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)
    names = [name for name in CATALOG if CATALOG[name].unavailable(CPU) is None]
    for name in sorted(names, key=lambda name: STAGES.index(CATALOG[name].stage)):
        _apply(train_state, name)

    states = {name: _state(train_state, name).on for name in names}

    assert len(names) >= 3
    assert all(states.values()), states


@pytest.mark.parametrize("level", LEVELS)
def test_checkpointing_keeps_every_bit_of_weights_and_statistics(
    level: str, tmp_path: Path
) -> None:
    plain, optimized = _make_train_state(tmp_path), _make_train_state(tmp_path)
    _apply(optimized, "gradient_checkpointing", level=level)

    assert _train(optimized, 5) == _train(plain, 5)

    expected = plain.model.state_dict()
    for key, value in optimized.model.state_dict().items():
        assert torch.equal(value, expected[key]), key


def test_each_level_of_checkpointing_keeps_less_and_computes_more_again(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)
    batch = train_state.train_batches.micro_batches(1)[0]

    shown = [probe(train_state, batch)]
    for level in LEVELS:
        _apply(train_state, "gradient_checkpointing", level=level)
        shown.append(probe(train_state, batch))

    products = [one.operators["aten::addmm"] + one.operators["aten::convolution"] for one in shown]
    kept = [one.saved_bytes for one in shown]
    assert [one.block_calls for one in shown] == [(1, 1, 1), (2, 2, 2), (2, 2, 2), (2, 2, 2)]
    assert kept == sorted(set(kept), reverse=True)
    assert kept[-1] < 0.25 * kept[0]
    # Three blocks of a widening projection and a convolution: none, the former, both again.
    assert products == [6, 6, 9, 12]


@pytest.mark.parametrize("level", ["light", "medium"])
def test_checkpointing_tells_what_its_level_kept(level: str, tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)
    _apply(train_state, "gradient_checkpointing", level=level)

    state = _state(train_state, "gradient_checkpointing")

    assert state.detail.startswith(f"{level}: 3 of 3 blocks computed twice, ")
    assert "products with weights" in state.detail


def test_checkpointing_rests_while_evaluating(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)
    _apply(train_state, "gradient_checkpointing")

    train_state.model.eval()

    assert probe(train_state, train_state.train_batches.micro_batches(1)[0]).block_calls == (
        1,
        1,
        1,
    )


def test_a_copy_of_a_checkpointed_model_uses_its_own_weights(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)
    _apply(train_state, "gradient_checkpointing")
    x = torch.ones(2, T, WIDTH)

    twin = copy.deepcopy(train_state.model).eval()
    with torch.no_grad():
        for parameter in train_state.model.parameters():
            parameter.zero_()

    assert not torch.equal(twin(x), train_state.model.eval()(x))


def test_a_model_without_blocks_or_attention_says_so(tmp_path: Path) -> None:
    train_state = make_setup(tmp_path)
    train_state.family = replace(TOY, blocks=lambda model: [])

    assert _state(train_state, "gradient_checkpointing").detail == (
        "this model has no blocks to checkpoint"
    )
    assert _state(train_state, "sdpa") == OptimizationStatus(False, "this model has no attention")


def test_sdpa_names_its_kernel_and_never_writes_the_attention_weights(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)
    _apply(train_state, "sdpa")

    shown = probe(train_state, train_state.train_batches.micro_batches(1)[0])

    assert "kernel: flash (CPU)" in CATALOG["sdpa"].status(train_state, shown).detail
    assert shown.operators["aten::bmm"] == 0


def test_sdpa_is_off_when_pytorch_falls_back_to_the_plain_product(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)
    _apply(train_state, "sdpa")

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        state = _state(train_state, "sdpa")

    assert not state.on
    assert "used plain attention" in state.detail


@pytest.mark.parametrize(
    ("machine", "mode", "dtype"),
    [
        (CPU, "auto", torch.bfloat16),
        (CPU, "bf16", torch.bfloat16),
        (HOPPER, "auto", torch.bfloat16),
        (HOPPER, "fp16", torch.float16),
        (TURING, "auto", torch.float16),
        (TURING, "fp16", torch.float16),
    ],
)
@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled, but CUDA is not")
def test_mixed_precision_takes_a_format_the_device_computes(
    machine: Device, mode: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    train_state = _make_train_state(tmp_path, machine)

    _apply(train_state, "mixed_precision", mode=mode)

    assert train_state.precision.autocast_dtype == dtype


@pytest.mark.parametrize(
    ("machine", "mode", "remedy"),
    [(CPU, "fp16", "Choose bf16 or auto"), (TURING, "bf16", "Choose fp16 or auto")],
)
def test_mixed_precision_refuses_a_format_the_device_lacks(
    machine: Device, mode: str, remedy: str
) -> None:
    entry = CATALOG["mixed_precision"]

    assert entry.refuse
    assert remedy in str(entry.refuse(machine, build_options(entry.options, {"mode": mode}, "")))
    assert entry.refuse(machine, entry.options()) is None


def test_options_that_cannot_work_are_refused_before_a_run_folder_is_made() -> None:
    config = RunConfig(
        training=TrainingConfig(device="cpu"), optimizations={"mixed_precision": {"mode": "fp16"}}
    )

    with pytest.raises(
        ConfigError, match="Mixed precision is not available here: fp16 needs a GPU"
    ):
        check_before_start(config)


def test_fp16_is_seen_by_its_operands_and_its_scaler(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)
    train_state.precision = Precision(torch.float16, torch.amp.grad_scaler.GradScaler("cpu"))

    state = _state(train_state, "mixed_precision")

    assert state.on
    assert "in fp16, loss scaled" in state.detail


def test_the_probe_leaves_the_scaler_alone(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)
    train_state.precision = Precision(torch.float16, torch.amp.grad_scaler.GradScaler("cpu"))
    before = train_state.precision.scaler.state_dict()

    _state(train_state, "mixed_precision")

    assert train_state.precision.scaler.state_dict() == before


def test_what_a_device_cannot_do_comes_with_its_reason() -> None:
    mixed, tf32 = CATALOG["mixed_precision"], CATALOG["tf32"]

    assert mixed.unavailable(MAXWELL) and "5.2" in str(mixed.unavailable(MAXWELL))
    assert mixed.unavailable(TURING) is None
    assert tf32.unavailable(HOPPER) is None
    assert "not support TF32" in str(tf32.unavailable(TURING))
    assert "CPU" in str(tf32.unavailable(CPU))


def test_tf32_is_off_when_convolutions_are_left_out(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path, HOPPER)
    _apply(train_state, "tf32")

    torch.backends.cudnn.allow_tf32 = False

    assert _state(train_state, "tf32") == OptimizationStatus(
        False, "fp32 matrix products in TF32, convolutions in fp32"
    )


def test_cudnn_times_as_many_kernels_as_asked(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path, HOPPER)

    _apply(train_state, "cudnn_benchmark", candidates=3)

    assert torch.backends.cudnn.benchmark_limit == 3
    assert "6 convolutions" in _state(train_state, "cudnn_benchmark").detail
    assert "CPU" in str(CATALOG["cudnn_benchmark"].unavailable(CPU))


def test_the_memory_limit_reaches_the_allocator(
    _allocator: dict[int, float], tmp_path: Path
) -> None:
    train_state = _make_train_state(tmp_path, HOPPER)

    _apply(train_state, "memory_limit", share=0.25)

    assert _allocator == {0: 0.25}
    assert _state(train_state, "memory_limit") == OptimizationStatus(
        True, "at most 20.0 of 80.0 GiB"
    )
    assert "CPU" in str(CATALOG["memory_limit"].unavailable(CPU))


def test_reproducible_and_what_undoes_it_are_told(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)
    _apply(train_state, "reproducible", threads=1)
    alone = _state(train_state, "reproducible")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True

    undone = _state(train_state, "reproducible")

    assert (alone.on, alone.detail) == (True, "reproducible kernels only, threads: 1")
    assert (undone.on, undone.detail) == (False, "cuDNN times kernels, TF32 is on")


def test_reproducible_but_not_strict_is_no_promise(tmp_path: Path) -> None:
    train_state = _make_train_state(tmp_path)

    _apply(train_state, "reproducible", strict=False)

    assert not _state(train_state, "reproducible").on
