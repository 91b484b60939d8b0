"""python -m trainer: sets how threads wait before torch is imported, then runs the command line."""

import os
import sys

# OpenMP threads spin for milliseconds while they wait for each other; as soon as a browser wants a
# core, a step then takes many times longer. Spinning briefly costs an idle machine a fifth of the
# speed and keeps a busy one going (trainer/README.md has the measurement). Set it to choose.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from trainer.supervisor import end_process, needs_supervisor, supervise  # noqa: E402


def leave_a_core() -> None:
    """Leave one core to the page and its browser, before torch counts them.

    A thread that waits for a core holds up all others. Several ranks share the cores as torchrun
    tells them to.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) - 1)))


def join_memory() -> None:
    """Let torch grow what it reserves of a GPU instead of collecting pieces, before it is imported.

    After hours of batches of many lengths, memory would else run out in pieces too small to use.
    """
    if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


if __name__ == "__main__":
    if needs_supervisor(sys.argv[1:]):
        sys.exit(supervise(sys.argv[1:]))
    leave_a_core()
    join_memory()
    # As the driver numbers GPUs, whose numbers the page shows; by itself CUDA puts fast ones first.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    # Only now: who supervises needs nothing of what trains.
    from trainer.cli import main

    end_process(main())
