"""Reproducible training: use deterministic kernels, so that a GPU repeats a run bit for bit.

On a CPU a resume is exact without this. On a GPU some kernels sum in the order in which threads
finish, which rounds differently each time.
"""

import os
from dataclasses import dataclass

import torch

from trainer.core.options import option
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import Probe, TrainState

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACES = (":4096:8", ":16:8")
"""The buffer settings for which cuBLAS's documentation promises reproducible results."""


@dataclass(frozen=True)
class Options:
    """The options of reproducible training."""

    threads: int = option(
        0,
        "CPU threads",
        "A different number of threads sums in a different order. 0: this machine's default.",
        min=0,
        max=1024,
    )
    strict: bool = option(
        True,
        "Stop at other kernels",
        "Stop if an operation has no deterministic kernel. Off: run it anyway and write a warning "
        "to the log.",
        advanced=True,
    )


def apply(state: TrainState, options: Options) -> None:
    """Set torch's flags for this process."""
    # cuBLAS reads this at its first matrix product, which has not happened yet.
    if os.environ.get(_WORKSPACE) not in _WORKSPACES:
        os.environ[_WORKSPACE] = _WORKSPACES[0]
    torch.use_deterministic_algorithms(True, warn_only=not options.strict)
    # Nothing here reads uninitialised memory, so torch need not spend time on filling it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Timing may pick another kernel in the next run.
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(options.threads or torch.get_num_threads())


def status(state: TrainState, probe: Probe) -> OptimizationStatus:
    """Report torch's flags, which other optimizations may have changed."""
    missing = [
        words
        for words, is_set in (
            ("nondeterministic kernels are allowed", torch.are_deterministic_algorithms_enabled()),
            ("cuDNN times kernels", not torch.backends.cudnn.benchmark),
            ("TF32 is on", torch.get_float32_matmul_precision() == "highest"),
            ("cuBLAS has its own workspace", os.environ.get(_WORKSPACE) in _WORKSPACES),
        )
        if not is_set
    ]
    if missing:
        return OptimizationStatus(False, ", ".join(missing))
    is_strict = not torch.is_deterministic_algorithms_warn_only_enabled()
    kernels = "reproducible kernels only" if is_strict else "reproducible kernels where available"
    return OptimizationStatus(is_strict, f"{kernels}, threads: {torch.get_num_threads()}")


OPTIMIZATION = Optimization(
    name="reproducible",
    label="Reproducible",
    help="Bit-identical results in every run and after every resume on one machine. Makes a GPU "
    "slower; a CPU resumes exactly without it. Cannot be combined with TF32 or timed cuDNN "
    "kernels.",
    stage="backend",
    exact=True,
    options=Options,
    apply=apply,
    status=status,
)
