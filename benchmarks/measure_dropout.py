"""Measure our dropout beside PyTorch's: OMP_NUM_THREADS=1 python -m benchmarks.measure_dropout.

Both in turns on the same values, CPU seconds of one thread; the ratio is that of neighbours, ours
to PyTorch's, as a median with its range. Printed forwards, and forwards with the way back.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models._layers.dropout import dropout

SHAPES = ((8, 437, 1024), (8, 200, 256), (8, 437, 64))
ROUNDS = 21
SHARE = 0.1

Drop = Callable[[Tensor], Tensor]


def main() -> None:
    """Measure and print a line for every shape."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for shape in SHAPES:
        values = torch.randn(shape, requires_grad=True)
        forward = compare(lambda drop, x=values: seconds_of(lambda: drop(x)))
        there_and_back = compare(lambda drop, x=values: seconds_of(lambda: pass_both(drop, x)))
        print(f"{shape}: forwards {forward}; forwards and backwards {there_and_back}")


def pass_both(drop: Drop, values: Tensor) -> None:
    """Compute dropout and its gradient; values have any shape."""
    values.grad = None
    drop(values).backward(values.detach())


def compare(measure: Callable[[Drop], float]) -> str:
    """Return the ratio of ours to PyTorch's in words."""
    ratios = []
    for round_ in range(ROUNDS):
        pair: list[Drop] = [_ours, _pytorch]
        order = pair if round_ % 2 else pair[::-1]
        found = {drop: measure(drop) for drop in order}
        ratios.append(found[_ours] / found[_pytorch])
    ratios = sorted(ratios[1:])
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def seconds_of(deed: Callable[[], object]) -> float:
    """Return the CPU seconds of this thread that a deed takes."""
    started = time.thread_time()
    deed()
    return time.thread_time() - started


def _ours(values: Tensor) -> Tensor:
    """values: any shape. Returns the same shape."""
    return dropout(values, SHARE)


def _pytorch(values: Tensor) -> Tensor:
    """values: any shape. Returns the same shape."""
    return F.dropout(values, SHARE)


if __name__ == "__main__":
    main()
