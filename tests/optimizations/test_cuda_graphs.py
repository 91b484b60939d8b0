"""CUDA graphs of compiled blocks, as far as a machine without a GPU can see them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.toy import make_setup
from trainer.core.events import Event, Notice
from trainer.core.run_config import TrainingConfig
from trainer.core.train_state import TrainState
from trainer.core.types import Batch
from trainer.models._layers.gpt2 import Gpt2Trunk
from trainer.optimizations import compile as box
from trainer.optimizations._core import compiled_block, cuda_graphs
from trainer.optimizations.compile import OPTIMIZATION, Options
from trainer.state.probe import probe
from trainer.training.loop import train_step

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    # Of PyTorch itself, when its compiler is loaded.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
GRAPHS = Options(mode="reduce-overhead", when="always")
WIDTH = 8


class _Lengths:
    """Two micro-batches a step, of lengths that are no multiple of anything."""

    steps_per_epoch = 9

    def micro_batches(self, step: int) -> list[Batch]:
        generator = torch.Generator().manual_seed(step)
        rows = [torch.randn(2, 7 * step + more, WIDTH, generator=generator) for more in (3, 4)]
        return [Batch({"x": x}, [], {"clips": 4.0}, 1.0) for x in rows]


@pytest.fixture(autouse=True)
def _traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Trace blocks, but write no code for them."""
    monkeypatch.setattr(
        compiled_block, "compile_with_inductor", lambda graph, inputs, **how: graph.forward
    )
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    yield
    torch._dynamo.reset()


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows whenever the compiler is told that a micro-step begins."""
    found: list[int] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: found.append(1))
    return found


def _setup(folder: Path, accumulate: int = 1) -> TrainState:
    train_state = make_setup(folder)
    torch.manual_seed(0)
    train_state.model = Gpt2Trunk(layers=2, width=WIDTH, heads=2, dropout=0.0)
    train_state.config = replace(
        train_state.config, training=TrainingConfig(steps=9, accumulate=accumulate)
    )
    train_state.family = replace(
        train_state.family,
        blocks=lambda model: list(model.h),  # type: ignore[union-attr, arg-type]
        losses=lambda model, batch: {"error": model(batch["x"]).square().mean()},
    )
    train_state.optimizer = torch.optim.AdamW(train_state.model.parameters())
    train_state.train_batches = _Lengths()  # type: ignore[assignment]
    return train_state


def test_the_compiler_is_told_to_record(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []

    def note(graph: Any, inputs: Any, config_patches: dict[str, Any]) -> Any:
        told.append(config_patches)
        return graph

    monkeypatch.undo()
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", note)
    for mode in ("default", "reduce-overhead"):
        compiled_block.compile_with_inductor(
            torch.fx.GraphModule(nn.Module(), torch.fx.Graph()),
            [],
            mode=mode,
            same_dropout=False,
            budget=1.0,
        )

    assert [patches["triton.cudagraphs"] for patches in told] == [False, True]


def test_every_micro_step_is_marked_and_no_validation(marks: list[int], tmp_path: Path) -> None:
    train_state = _setup(tmp_path)
    OPTIMIZATION.apply(train_state, GRAPHS)

    train_step(train_state, 1)
    in_training = len(marks)
    train_state.model.eval()
    train_state.model(torch.ones(1, 3, WIDTH))

    assert in_training == len(marks) == 2


def test_blocks_see_few_lengths_and_compute_the_same(marks: list[int], tmp_path: Path) -> None:
    plain, recorded = _setup(tmp_path), _setup(tmp_path)
    OPTIMIZATION.apply(recorded, GRAPHS)
    seen: list[int] = []
    block: nn.Module = recorded.family.blocks(recorded.model)[0]
    block.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[1]))

    losses = [
        [train_step(train_state, step)["error"].item() for step in range(1, 9)]
        for train_state in (plain, recorded)
    ]

    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert len(seen) == 16 and set(seen) == {32, 64}


def test_what_longer_rows_cost_is_told(marks: list[int], tmp_path: Path) -> None:
    train_state = _setup(tmp_path)
    OPTIMIZATION.apply(train_state, GRAPHS)

    state = OPTIMIZATION.status(
        train_state, probe(train_state, train_state.train_batches.micro_batches(4)[0])
    )

    # Of 31 positions come 32; without a GPU no graph is recorded, so it is not really on.
    assert not state.on
    assert "0 CUDA graphs recorded" in state.detail
    assert "3.2 % of positions added as padding" in state.detail


@pytest.mark.parametrize(("accumulate", "is_copied"), [(1, False), (2, True)])
def test_gradients_leave_the_memory_of_graphs_if_another_micro_step_follows(
    accumulate: int, is_copied: bool, marks: list[int], tmp_path: Path
) -> None:
    train_state = _setup(tmp_path, accumulate)
    OPTIMIZATION.apply(train_state, GRAPHS)

    train_state.model(torch.ones(1, 3, WIDTH)).square().mean().backward()

    inside: Tensor | None = train_state.model.get_parameter("h.0.mlp.c_fc.weight").grad
    outside: Tensor | None = train_state.model.get_parameter("ln_f.weight").grad
    assert hasattr(inside, "is_taken_out") == is_copied
    assert not hasattr(outside, "is_taken_out")


def test_what_cannot_be_recorded_is_compiled_without_graphs(
    marks: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train_state = _setup(tmp_path)
    events: list[Event] = []

    def fail_to_record(graph: Any, inputs: list[Any], *, mode: str, **how: Any) -> Any:
        def run(*args: Any) -> Any:
            if mode == "reduce-overhead":
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            return graph.forward(*args)

        return run

    monkeypatch.setattr(compiled_block, "compile_with_inductor", fail_to_record)
    OPTIMIZATION.apply(train_state, GRAPHS)
    assert OPTIMIZATION.finalize
    OPTIMIZATION.finalize(train_state, GRAPHS, events.append)

    notice = events[-1]
    assert isinstance(notice, Notice)
    assert notice.text.startswith("The model is compiled: ")
    assert "without CUDA graphs: they could not be recorded: CUDA error" in notice.text
    assert train_state.model.get_submodule("").length_step == 1  # type: ignore[union-attr]
    state = OPTIMIZATION.status(
        train_state, probe(train_state, train_state.train_batches.micro_batches(1)[0])
    )
    assert state.on and "CUDA graphs" not in state.detail


def test_recordings_are_counted_as_the_compiler_counts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class _Node:
        def num_descendants(self) -> int:
            return 59

    class _Manager:
        roots = {0: [_Node()], 1: [_Node()]}

    monkeypatch.setattr(
        "torch._inductor.cudagraph_trees.get_manager", lambda index, create_if_none_exists: _Manager
    )
    monkeypatch.setitem(torch._dynamo.utils.counters["inductor"], "cudagraph_skips", 3)

    assert cuda_graphs.count_graphs(torch.device("cuda", 0)) == (120, 3)


def test_the_help_says_that_no_gpu_has_run_it() -> None:
    assert "not been tested on a GPU" in str(box.Options.__dataclass_fields__["mode"].metadata)
