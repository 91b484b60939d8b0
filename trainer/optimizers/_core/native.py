"""Update rules compiled from C++ for the CPU, which read and write memory once per step.

A rule is the body of a loop over entries; the loop, the table of pointers and the threads are the
same for all rules. Sums are taken per row of `ROW` entries and added in double precision and in a
fixed order, so the result does not depend on the number of threads.
"""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.core.errors import ConfigError
from trainer.core.options import option

ROW = 4096
"""Entries per row, the unit of sums and of work per thread; chosen by hand: 16 KiB in float32
stays in the L1 cache, and a reduction of fixed length vectorises."""
_COMPILERS = ("g++", "clang++")
# Of -ffast-math only what vectorisation needs: sums may be reordered within a row, and sqrt need
# not set errno. NaN and infinity keep their meaning, because a diverged run has to show them.
_FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"),
)
_SOURCE = """
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

template <typename Real>
static void run_row(%(parameters)s,
                    int64_t begin, int64_t end, const double* numbers, double* sums) {
  %(declarations)s
  Real sum_a = 0, sum_b = 0;
  for (int64_t i = begin; i < end; ++i) {
    %(body)s
  }
  sums[0] = sum_a;
  sums[1] = sum_b;
}

template <typename Real>
static void run(Real** table, const int64_t* sizes, const int64_t* first_rows, int64_t num_tensors,
                const double* numbers, double* sums, int64_t num_threads) {
  const int64_t num_rows = first_rows[num_tensors];
  auto work = [&](int64_t begin, int64_t end) {
    int64_t tensor = 0;
    for (int64_t row = begin; row < end; ++row) {
      while (first_rows[tensor + 1] <= row) ++tensor;
      const int64_t first = (row - first_rows[tensor]) * %(row)d;
      const int64_t last = first + %(row)d < sizes[tensor] ? first + %(row)d : sizes[tensor];
      Real** columns = table + tensor * %(width)d;
      run_row<Real>(%(arguments)s, first, last, numbers, sums + 2 * row);
    }
  };
  std::vector<std::thread> others;
  for (int64_t k = 1; k < num_threads; ++k)
    others.emplace_back(work, num_rows * k / num_threads, num_rows * (k + 1) / num_threads);
  work(0, num_rows / num_threads);
  for (auto& other : others) other.join();
}

extern "C" void run_float32(void** table, const int64_t* sizes, const int64_t* first_rows,
                            int64_t num_tensors, const double* numbers, double* sums, int64_t n) {
  run<float>((float**)table, sizes, first_rows, num_tensors, numbers, sums, n);
}

extern "C" void run_float64(void** table, const int64_t* sizes, const int64_t* first_rows,
                            int64_t num_tensors, const double* numbers, double* sums, int64_t n) {
  run<double>((double**)table, sizes, first_rows, num_tensors, numbers, sums, n);
}
"""


def compiled_field(hint: str = "") -> Any:
    """Declare the option that compiles a rule for the CPU."""
    text = (
        "Run each step in a single pass over memory, with code that is compiled in about a second "
        "when the run starts. Needs a CPU and g++ or clang++. Rounding differs slightly."
    )
    return option(False, "Compiled", text + hint, advanced=True)


class NativeRule:
    """An update rule for CPU tensors, compiled on first use.

    `body` updates entry `i` of the named columns, reads the named numbers (of type Real), and may
    add to `sum_a` and `sum_b`.
    """

    def __init__(self, *, columns: Sequence[str], numbers: Sequence[str], body: str) -> None:
        # As parameters, not variables: compilers use __restrict on parameters more reliably, and
        # without it they assume that columns overlap and do not vectorise.
        parameters = [f"Real* __restrict {name}" for name in columns]
        lines = [f"const Real {name} = Real(numbers[{k}]);" for k, name in enumerate(numbers)]
        self._source = _SOURCE % {
            "declarations": "\n  ".join(lines),
            "body": body,
            "row": ROW,
            "width": len(columns),
            "parameters": ", ".join(parameters),
            "arguments": ", ".join(f"columns[{k}]" for k in range(len(columns))),
        }

    def __call__(self, columns: Sequence[Sequence[Tensor]], numbers: Tensor) -> Tensor:
        """Apply the rule to contiguous tensors of one dtype (any shape).

        Args:
            columns: Lists of equal length, one per column of the rule.
            numbers: float64, one value per number of the rule.

        Returns:
            Both sums, (2,) float64.
        """
        rows = list(zip(*columns, strict=True))
        table = torch.tensor([tensor.data_ptr() for row in rows for tensor in row])
        sizes = torch.tensor([row[0].numel() for row in rows])
        first_rows = torch.zeros(len(rows) + 1, dtype=torch.int64)
        torch.cumsum((sizes + ROW - 1).div(ROW, rounding_mode="floor"), 0, out=first_rows[1:])
        num_rows = sum(-(-row[0].numel() // ROW) for row in rows)
        # One pair per row, added below in a fixed order, whichever thread computed it.
        sums = torch.zeros(num_rows, 2, dtype=torch.float64)
        name = "run_float32" if columns[0][0].dtype == torch.float32 else "run_float64"
        getattr(_load(self._source), name)(
            table.data_ptr(),
            sizes.data_ptr(),
            first_rows.data_ptr(),
            len(rows),
            numbers.data_ptr(),
            sums.data_ptr(),
            torch.get_num_threads(),
        )
        return sums.sum(0)

    def check(self, device: torch.device) -> None:
        """Compile the rule now, so that a problem shows before training starts.

        Raises:
            ConfigError: the device is not a CPU, or no compiler can build the rule.
        """
        if device.type != "cpu":
            raise ConfigError(
                f"Compiled optimizers run on a CPU, not on {device.type}. Turn the option Compiled "
                "off; on a GPU the optimizer launches only a few kernels without it."
            )
        _load(self._source)


@cache
def _load(source: str) -> ctypes.CDLL:
    """Compile and load a source; the library stays loaded after its file is deleted."""
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise ConfigError(
            "A compiled optimizer needs g++ or clang++, and neither was found. Install one, or "
            "turn the option Compiled off."
        )
    # Not kept for other runs: -march=native code may not run on another machine.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path, target = Path(folder) / "rule.cpp", Path(folder) / "rule.so"
        path.write_text(source, encoding="utf-8")
        done = subprocess.run(
            [compiler, *_FLAGS, str(path), "-o", str(target)], capture_output=True, text=True
        )
        if done.returncode:
            raise ConfigError(
                f"{compiler} could not compile the optimizer: {done.stderr.strip()[-500:]} "
                "Turn the option Compiled off."
            )
        library = ctypes.CDLL(str(target))
    for name in ("run_float32", "run_float64"):
        function = getattr(library, name)
        # Without types ctypes passes Python integers as 32-bit C ints and cuts pointers in half.
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        function.argtypes = [pointer, pointer, pointer, number, pointer, pointer, number]
        function.restype = None
    return library
