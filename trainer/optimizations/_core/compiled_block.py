"""A block's forward, compiled once and run by every block of its class.

This is regional compilation: compiling one block instead of the whole model takes a fraction of the
time, and all blocks share the result, because weights are inputs of the graph. Batch size and
length are marked as dynamic from the first call, so that a new length needs no recompilation.
"""

import logging
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

Graph = Callable[..., object]
CompileGraph = Callable[[torch.fx.GraphModule, list[object]], Graph]

_LOG = logging.getLogger("timbre")


class SharedProgram:
    """The compiled form of a forward, shared by all blocks of a class.

    `disabled_reason` says why blocks run uncompiled, or is empty. `num_graphs` counts compilations;
    more than one means recompilation. `records` says whether CUDA graphs are recorded.
    """

    def __init__(
        self, forward: Graph, compile_graph: CompileGraph, *, records: bool = False
    ) -> None:
        self.disabled_reason = ""
        self.records = records
        self.num_graphs = 0
        self._num_runs = 0
        self._compile_graph = compile_graph
        self._compiled = torch.compile(forward, backend=self._make_graph, fullgraph=True)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return the program itself: a copied block has its own weights but the same code."""
        return self

    def run(self, block: nn.Module, *args: object, **kwargs: object) -> object:
        """Compute a block's forward, and count the call on the block if it ran compiled."""
        before = self._num_runs
        places = [_as_in_any_block(value) for value in args]
        named = {name: _as_in_any_block(value) for name, value in kwargs.items()}
        try:
            found = self._compiled(block, *places, **named)
        except TorchDynamoException as error:
            self.disable(explain(error))
            _LOG.warning("The blocks run uncompiled from now on", exc_info=error)
            return type(block).forward(block, *args, **kwargs)
        if self._num_runs > before:
            vars(block)["compiled_runs"] = vars(block).get("compiled_runs", 0) + 1
        return found

    def disable(self, reason: str) -> None:
        """Run the blocks uncompiled for a reason that is shown; an empty reason turns this off."""
        self.disabled_reason = reason

    def _make_graph(self, graph: torch.fx.GraphModule, inputs: list[object]) -> Graph:
        compiled = self._compile_graph(graph, inputs)
        self.num_graphs += 1

        def run(*args: object) -> object:
            self._num_runs += 1
            return compiled(*args)

        return run


def compile_with_inductor(
    graph: torch.fx.GraphModule,
    inputs: list[object],
    *,
    mode: str,
    same_dropout: bool,
    budget: float,
) -> Graph:
    """Compile a graph; `budget` is the share of its activations that it may keep (0 to 1)."""
    # Imported here, because the import takes seconds that only runs with compilation should spend.
    from torch._functorch import config as functorch_config
    from torch._inductor.compile_fx import compile_fx

    patches: dict[str, object] = {
        "fallback_random": same_dropout,
        # Trust the CPU's feature flags; testing each instruction set would start processes.
        "cpp.vec_isa_ok": True,
        "triton.cudagraphs": mode == "reduce-overhead",
    }
    if not torch.cuda.is_available():
        # Only two small files are compiled, and starting a pool of processes would take longer.
        patches["compile_threads"] = 1
    with functorch_config.patch(activation_memory_budget=budget):
        return compile_fx(graph, inputs, config_patches=patches)  # type: ignore[return-value]


def explain(error: Exception) -> str:
    """Return the innermost error of a compiler failure in one line, at most 200 characters long."""
    while isinstance(inner := getattr(error, "inner_exception", None), Exception):
        error = inner
    said = " ".join(str(error).split())
    return f"the compiler failed: {type(error).__name__}: {said[:200]}"


def _as_in_any_block(value: object) -> object:
    """Make the inputs of all blocks look alike to the compiler.

    Batch size and length of a tensor (B, T, ...) are marked as dynamic. The input of the first
    block may need no gradient, for instance if everything before it is frozen, and would cause a
    second compilation; computing that gradient costs far less.
    """
    if not isinstance(value, Tensor):
        return value
    if value.is_floating_point() and not value.requires_grad:
        value = value.detach().requires_grad_()
    for place in range(min(2, value.dim())):
        torch._dynamo.maybe_mark_dynamic(value, place)
    return value
