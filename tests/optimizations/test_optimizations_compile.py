"""Compiling the blocks: the arithmetic that decides, what is told, and what happens if it fails."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.toy import make_setup
from trainer.core.device import Device
from trainer.core.events import Event, Notice, PhaseChanged
from trainer.core.specs import OptimizationStatus
from trainer.core.train_state import TrainState
from trainer.core.types import Batch
from trainer.optimizations import compile as box
from trainer.optimizations._core import compiled_block
from trainer.optimizations.compile import (
    OPTIMIZATION,
    Gain,
    Options,
    apply,
    compile_cannot_pay,
    finalize,
)
from trainer.state.probe import probe
from trainer.training.loop import train_step

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
CPU = Device("cpu", 0, "some CPU", 8.0)
VOLTA = Device("cuda", 0, "a GPU of 2017", 16.0, (7, 0))
MANY = 10**6


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Layer(), _Layer()])
        self.outer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.outer(x)


def _setup(folder: Path, steps: int = MANY) -> TrainState:
    train_state = make_setup(folder)
    torch.manual_seed(0)
    train_state.model = _Model()
    train_state.family = replace(train_state.family, blocks=lambda model: list(model.layers))  # type: ignore[union-attr, arg-type]
    train_state.optimizer = torch.optim.AdamW(train_state.model.parameters())
    train_state.last_step = steps
    return train_state


def _finalize(train_state: TrainState, **options: Any) -> list[Event]:
    events: list[Event] = []
    apply(train_state, Options(**options))
    finalize(train_state, Options(**options), events.append)
    return events


def _notice(events: list[Event]) -> Notice:
    assert isinstance(events[0], PhaseChanged)
    assert isinstance(events[1], Notice)
    return events[1]


def _state(train_state: TrainState) -> OptimizationStatus:
    return OPTIMIZATION.status(
        train_state, probe(train_state, train_state.train_batches.micro_batches(1)[0])
    )


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


@pytest.fixture
def pass_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Return a function that sets the seconds of a plain and of a compiled pass."""

    def use(plain_s: float, compiled_s: float) -> None:
        times = iter([plain_s, compiled_s])
        monkeypatch.setattr(box, "_time_pass", lambda train_state, batch: next(times))

    return use


def test_the_arithmetic_is_told() -> None:
    gain = Gain(plain_s=0.5, compiled_s=0.3, compile_s=40.0, steps=1000)

    assert gain.describe() == (
        "40 s of compiling; a step's forward and backward pass takes 0.300 s instead of 0.500 s, "
        "over 1000 steps 200 s less"
    )


def test_a_run_too_short_to_gain_is_foreseen() -> None:
    assert compile_cannot_pay(plain_s=0.5, steps=160, compile_s=40.0) == ""
    assert "could save at most 40 s, and compiling takes about 41 s" in compile_cannot_pay(
        0.5, 160, 41.0
    )


def test_a_short_run_is_never_compiled(
    pass_seconds: Callable[[float, float], None], tmp_path: Path
) -> None:
    train_state = _setup(tmp_path, steps=10)
    pass_seconds(0.1, 0.01)

    notice = _notice(_finalize(train_state))

    state = _state(train_state)
    assert notice.level == "info"
    assert notice.text.startswith(
        "The model is not compiled: it would not pay off: the 10 remaining"
    )
    assert not state.on
    assert state.detail in notice.text
    assert vars(train_state.family.blocks(train_state.model)[0])["program"].num_graphs == 0


def test_a_gain_is_kept_and_told(
    pass_seconds: Callable[[float, float], None], tmp_path: Path
) -> None:
    train_state = _setup(tmp_path)
    pass_seconds(0.2, 0.1)

    notice = _notice(_finalize(train_state))

    assert notice.text.startswith("The model is compiled: ")
    assert "takes 0.100 s instead of 0.200 s" in notice.text
    assert _state(train_state) == OptimizationStatus(True, "2 of 2 blocks ran compiled")


def test_what_is_not_faster_is_left_out_unless_asked_for(
    pass_seconds: Callable[[float, float], None], tmp_path: Path
) -> None:
    auto, always = _setup(tmp_path), _setup(tmp_path)

    pass_seconds(0.1, 0.1)
    left_out = _notice(_finalize(auto)).text
    pass_seconds(0.1, 0.1)
    kept = _notice(_finalize(always, when="always")).text

    assert left_out.startswith("The model is not compiled: it is not faster.")
    assert kept.startswith("The model is compiled")
    assert not _state(auto).on
    assert _state(always).on


@pytest.mark.fault("E10")
def test_a_compiler_that_fails_costs_the_gain_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(graph: Any, inputs: list[Any], **how: Any) -> Any:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(compiled_block, "compile_with_inductor", fail)
    plain, broken = _setup(tmp_path), _setup(tmp_path)

    notice = _notice(_finalize(broken, when="always"))

    losses = [[train_step(train_state, 1)["error"].item()] for train_state in (plain, broken)]
    assert notice.level == "warning"
    assert "the compiler failed: RuntimeError: no such instruction" in notice.text
    assert "continues uncompiled" in notice.remedy
    assert losses[0] == losses[1]
    assert not _state(broken).on


@pytest.mark.parametrize(
    "error",
    [RuntimeError("no kernel image"), OSError("cannot load"), torch.OutOfMemoryError("too large")],
)
def test_kernels_that_fail_when_they_first_run_cost_the_gain_too(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def compile_graph(graph: Any, inputs: list[Any], **how: Any) -> Any:
        def run(*args: Any) -> Any:
            raise error

        return run

    monkeypatch.setattr(compiled_block, "compile_with_inductor", compile_graph)
    train_state = _setup(tmp_path)

    notice = _notice(_finalize(train_state, when="always"))

    assert notice.level == "warning"
    assert str(error) in notice.text
    train_step(train_state, 1)
    assert not _state(train_state).on


def test_a_first_batch_that_is_too_large_is_left_to_who_makes_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(train_state: TrainState, batch: Batch) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(box, "_time_pass", fail)
    train_state = _setup(tmp_path)

    notice = _notice(_finalize(train_state))

    assert "does not fit into memory" in notice.text
    assert "does not fit into memory" in _state(train_state).detail


def test_settling_leaves_no_trace_in_weights_and_gradients(tmp_path: Path) -> None:
    train_state = _setup(tmp_path)
    before = {name: value.clone() for name, value in train_state.model.state_dict().items()}
    random = torch.get_rng_state()

    _finalize(train_state, when="always")

    after = train_state.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(value.grad is None for value in train_state.model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_validation_runs_the_blocks_as_they_are_written(tmp_path: Path) -> None:
    train_state = _setup(tmp_path)
    apply(train_state, Options())

    train_state.model.eval()
    train_state.model(torch.ones(3, 4))

    assert vars(train_state.family.blocks(train_state.model)[0])["program"].num_graphs == 0


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert "C++ compiler" in str(OPTIMIZATION.unavailable(CPU))
    assert "triton" in str(OPTIMIZATION.unavailable(VOLTA))


def test_cuda_graphs_are_refused_without_a_gpu() -> None:
    assert OPTIMIZATION.refuse
    assert "needs a GPU" in str(OPTIMIZATION.refuse(CPU, Options(mode="reduce-overhead")))
    assert OPTIMIZATION.refuse(VOLTA, Options(mode="reduce-overhead")) is None


def test_the_help_says_what_takes_the_place_of_older_advice() -> None:
    assert "TensorRT and XLA" in OPTIMIZATION.help
