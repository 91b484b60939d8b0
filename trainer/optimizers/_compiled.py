"""Rules as one loop per tensor, made by torch.compile where there is a compiler."""

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.errors import ConfigError

ROW = 4096
"""Entries of a row. Sums over rows of a fixed length stay in the loop that computes the entries."""


def check_compiler(device: torch.device) -> None:
    """Refuse to compile where nothing can.

    Raises:
        ConfigError: there is no C++ compiler for a CPU, or no Triton for a GPU.
    """
    if device.type == "cpu":
        found = any(shutil.which(name) for name in ("g++", "clang++", "cl"))
        missing = "a C++ compiler (g++, clang++ or cl)"
    else:
        found = importlib.util.find_spec("triton") is not None
        missing = "the package triton"
    if not found:
        raise ConfigError(
            f"A compiled optimizer needs {missing}, which is not there. Install it, or switch "
            "the option Compiled off."
        )


class CompiledRule:
    """A rule that is compiled once, for any number of rows."""

    def __init__(self, rule: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self._rule: Any = torch.compile(rule)

    def __call__(
        self, columns: Sequence[list[Tensor]], factors: Tensor
    ) -> tuple[list[list[Tensor]], tuple[list[Tensor], list[Tensor]]]:
        """Apply the rule to all whole rows of flat tensors (any shape).

        Returns:
            What is left of every column: ends and small tensors; and the sums of both results.
        """
        rest: list[list[Tensor]] = [[] for _ in columns]
        sums: tuple[list[Tensor], list[Tensor]] = ([], [])
        factors = factors.to(columns[0][0].dtype)
        for tensors in zip(*columns, strict=True):
            num_rows = tensors[0].numel() // ROW
            if num_rows > 1:  # a single row would be compiled for itself
                for part, value in zip(sums, self._run(tensors, num_rows, factors), strict=True):
                    part.append(value.sum())
                tensors = tuple(tensor[num_rows * ROW :] for tensor in tensors)
            if tensors[0].numel():
                for column, tensor in zip(rest, tensors, strict=True):
                    column.append(tensor)
        return rest, sums

    def _run(
        self, tensors: tuple[Tensor, ...], num_rows: int, factors: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Call the rule with views of (rows, ROW)."""
        rows = [tensor[: num_rows * ROW].view(num_rows, ROW) for tensor in tensors]
        for view in rows:
            torch._dynamo.mark_dynamic(view, 0)
        return self._rule(*rows, factors)
