"""Reproducible: kernels that add up in the same order every time, so that a GPU repeats every bit.

A resume is exact without it on a CPU; on a GPU some kernels add up as their threads come.
"""

import os
from dataclasses import dataclass

import torch

from trainer.core.device import Device
from trainer.core.options import option
from trainer.core.specs import Optimization, State
from trainer.core.train_state import Probe, Setup

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACES = (":4096:8", ":16:8")
"""With these buffers cuBLAS is reproducible, says its documentation."""


@dataclass(frozen=True)
class Options:
    """The options of reproducible training."""

    threads: int = option(
        0,
        "CPU threads",
        "Another number of threads adds up in another order. 0: as many as this machine gives.",
        min=0,
        max=1024,
    )
    strict: bool = option(
        True,
        "Stop at other kernels",
        "Stop where a computation has no reproducible form; off: compute it anyway, with a warning "
        "in the log.",
        folded=True,
    )


def unavailable(device: Device) -> str | None:
    """Return None: it works everywhere."""
    return None


def apply(setup: Setup, options: Options) -> None:
    """Set torch's flags for this process."""
    # cuBLAS reads it at its first product, which is still to come.
    if os.environ.get(_WORKSPACE) not in _WORKSPACES:
        os.environ[_WORKSPACE] = _WORKSPACES[0]
    torch.use_deterministic_algorithms(True, warn_only=not options.strict)
    # Nothing here reads memory before it is written, so torch need not fill it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(options.threads or torch.get_num_threads())


def state(setup: Setup, probe: Probe) -> State:
    """Tell what torch's flags say; boxes that were ticked besides may have changed them."""
    missing = [
        words
        for words, is_set in (
            ("kernels of any order are allowed", torch.are_deterministic_algorithms_enabled()),
            ("cuDNN times kernels", not torch.backends.cudnn.benchmark),
            ("TF32 is on", torch.get_float32_matmul_precision() == "highest"),
            ("cuBLAS has its own workspace", os.environ.get(_WORKSPACE) in _WORKSPACES),
        )
        if not is_set
    ]
    if missing:
        return State(False, ", ".join(missing))
    is_strict = not torch.is_deterministic_algorithms_warn_only_enabled()
    kernels = "reproducible kernels only" if is_strict else "reproducible kernels where there are"
    return State(is_strict, f"{kernels}, threads: {torch.get_num_threads()}")


OPTIMIZATION = Optimization(
    name="reproducible",
    label="Reproducible",
    help="The same numbers to the last bit in every run and after every resume on one machine, "
    "also on a GPU, where it costs speed. A CPU resumes exactly without it. Not together with "
    "TF32 or timed cuDNN kernels.",
    stage="backend",
    exact=True,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    state=state,
)
