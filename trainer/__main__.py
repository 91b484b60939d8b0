"""Entry point of `python -m trainer`: set thread and memory defaults, then run a command."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run one command of the command line and end the process with its exit code."""
    words = list(sys.argv[1:] if words is None else words)
    limit_spinning()
    # Imported here: the supervisor stays small because it never loads what a run needs.
    from trainer.core.child_process import hear_interrupts
    from trainer.worker.supervisor import end_process, needs_supervisor, supervise

    hear_interrupts()
    if needs_supervisor(words):
        sys.exit(supervise(words))
    reserve_a_core()
    enable_expandable_segments()
    # Number GPUs as the driver does, and as the page shows them; CUDA's default puts fast ones
    # first.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    from trainer.commands.main import main as run_command

    end_process(run_command(words))


def limit_spinning() -> None:
    """Let OpenMP threads spin only briefly while they wait for each other.

    By default they spin for milliseconds. As soon as a browser needs a core, a step then takes 20
    times as long (0.07 -> 1.3 s/step on two busy cores). With a spin count of 10000 it is 0.08 ->
    0.18 s/step, so an idle machine loses a fifth of its speed (measured; see docs/decisions/0035).
    libgomp reads this when torch is imported; a value set by the user is kept.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def reserve_a_core() -> None:
    """Leave one core to the page and its browser; call this before torch is imported.

    A thread that waits for a core holds up all the others. With several ranks, torchrun has
    already set the number of threads, and that number is kept.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) - 1)))


def enable_expandable_segments() -> None:
    """Reduce fragmentation of GPU memory; call this before torch is imported.

    After hours of batches of many lengths, the memory that torch reserved consists of pieces too
    small to use. Segments that can grow avoid this.
    """
    # Expandable segments exist on Linux only. The second name is torch's older one; a user who set
    # either of them has made a choice.
    if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


if __name__ == "__main__":
    # The `timbre` command has made this check by itself.
    from trainer.commands._package_conflict import refuse_foreign_trainer

    refuse_foreign_trainer()
    main()
