"""A block's forward, compiled once and run by every block of its class.

Regional compilation: one block is compiled instead of the whole model, which takes a fraction of
the time, and all blocks share the result, since weights are inputs of the graph. Batch and length
are marked as varying from the first call on, so that no later length is compiled anew.
"""

import logging
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

Graph = Callable[..., Any]
CompileGraph = Callable[[torch.fx.GraphModule, list[Any]], Graph]

_LOG = logging.getLogger("timbre")


class SharedProgram:
    """The compiled form of a forward; `resting` says why blocks do without it, empty: they use it.

    `num_graphs` counts compilations: what exceeds one was compiled again. `records` says whether
    CUDA graphs are recorded of it.
    """

    def __init__(
        self, forward: Callable[..., Any], compile_graph: CompileGraph, *, records: bool = False
    ) -> None:
        self.resting = ""
        self.records = records
        self.num_graphs = 0
        self._num_runs = 0
        self._compile_graph = compile_graph
        self._compiled = torch.compile(forward, backend=self._make_graph, fullgraph=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Stay one program: a copied block brings its own weights, the code is the same."""
        return self

    def run(self, block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Compute the forward of a block, and count it there if it really ran compiled."""
        before = self._num_runs
        places = [_as_in_any_block(value) for value in args]
        named = {name: _as_in_any_block(value) for name, value in kwargs.items()}
        try:
            found = self._compiled(block, *places, **named)
        except TorchDynamoException as error:
            self.rest(explain(error))
            _LOG.warning("The blocks run uncompiled from now on", exc_info=error)
            return type(block).forward(block, *args, **kwargs)
        if self._num_runs > before:
            vars(block)["compiled_runs"] = vars(block).get("compiled_runs", 0) + 1
        return found

    def rest(self, reason: str) -> None:
        """Let the blocks run uncompiled, for a reason that is shown; empty: compiled again."""
        self.resting = reason

    def _make_graph(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Graph:
        compiled = self._compile_graph(graph, inputs)
        self.num_graphs += 1

        def run(*args: Any) -> Any:
            self._num_runs += 1
            return compiled(*args)

        return run


def compile_with_inductor(
    graph: torch.fx.GraphModule,
    inputs: list[Any],
    *,
    mode: str,
    same_dropout: bool,
    budget: float,
) -> Graph:
    """Compile a graph; `budget` is the share of what it would keep that it may keep."""
    # Imported here: it takes seconds, which only runs that compile should wait for.
    from torch._functorch import config as functorch_config
    from torch._inductor.compile_fx import compile_fx

    patches: dict[str, Any] = {
        "fallback_random": same_dropout,
        # The processor's own word is enough; trying each instruction set out starts processes.
        "cpp.vec_isa_ok": True,
        "triton.cudagraphs": mode == "reduce-overhead",
    }
    if not torch.cuda.is_available():
        # Two small files are compiled; a pool of processes would start slower than it works.
        patches["compile_threads"] = 1
    with functorch_config.patch(activation_memory_budget=budget):
        return compile_fx(graph, inputs, config_patches=patches)  # type: ignore[return-value]


def explain(error: Exception) -> str:
    """Return in one line what a compiler said, by the error that lies beneath its wrappings."""
    while isinstance(inner := getattr(error, "inner_exception", None), Exception):
        error = inner
    said = " ".join(str(error).split())
    return f"the compiler failed: {type(error).__name__}: {said[:200]}"


def _as_in_any_block(value: Any) -> Any:
    """Make what one block is given look like what every other one is given, step after step.

    Batch and length of a tensor (B, T, ...) vary. A first block whose input needs no gradient, as
    when all before it is frozen, would be compiled apart; computing that gradient costs far less.
    """
    if not isinstance(value, Tensor):
        return value
    if value.is_floating_point() and not value.requires_grad:
        value = value.detach().requires_grad_()
    for place in range(min(2, value.dim())):
        torch._dynamo.maybe_mark_dynamic(value, place)
    return value
