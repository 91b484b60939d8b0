"""Trials that combine optimizations for one purpose, and the project's goals for them on a GPU.

The goals were set for an H200; they are evaluated on any device that was measured.
"""

from dataclasses import asdict, dataclass

from trainer.core.device import GIB, Device
from trainer.profiling.benchmark.plan import FIRST, GUIDE, available_optimizations
from trainer.profiling.measurements import ByName, Measurement, Trial

SMALL_CARD_BYTES = 7.2e9
"""Memory that a run may use on a card sold with 8 GB: 90 %, the rest is left to the desktop."""

_FAST: ByName = {
    "tf32": {},
    "sdpa": {},
    "bf16_weights": {},
    "compile": {"when": "always"},
}
_LIGHT = {"gradient_checkpointing": {"level": "light"}}
_MEDIUM = {"gradient_checkpointing": {"level": "medium"}}
_STOCHASTIC = {"bf16_weights": {"updates": "stochastic"}}
_GRAPHS = {"compile": {"when": "always", "mode": "reduce-overhead"}}
_FAIR, _THREE = "tf32+sdpa", "+".join(GUIDE)
_NO_SLOWER, _HARDLY_SLOWER = 1.02, 1.1  # times the fastest; 2 % is within timing noise


def plan_goals(device: Device) -> list[Trial]:
    """Return the trials for the goals, most useful first, limited to what the device supports.

    One uses a batch of 32; if the device is larger than a small card, one simulates its limit.
    """
    boxes, _ = available_optimizations(device)
    # `memory_limit` takes a share of the device, so the same limit holds on any GPU.
    share = SMALL_CARD_BYTES / (device.memory_gib * GIB)
    rows = [
        _trial("fast", "for speed", _FAST),
        _trial("lean", "for low memory", _FAST | _STOCHASTIC | _MEDIUM),
        _trial("fast+light", "for speed, light checkpointing", _FAST | _LIGHT),
        _trial("fast_batch32", "for speed, batch 32", _FAST, {"training": {"batch_size": 32}}),
    ]
    if "memory_limit" in boxes and share < 1:
        limited = _FAST | _STOCHASTIC | _MEDIUM | {"memory_limit": {"share": share}}
        del limited["compile"]
        # Early in the list, so that it is measured even if time runs out.
        rows.insert(2, _trial("within_7.2gb", "within 7.2 GB, for all weights", limited))
    if device.kind == "cuda":
        rows.append(_trial("fast_graphs", "for speed, CUDA graphs", _FAST | _GRAPHS))
    for row in rows:
        # On a CPU some optimizations do not exist; the goals are then checked with the rest.
        row.boxes = {name: options for name, options in row.boxes.items() if name in boxes}
    return rows


def _trial(
    name: str,
    label: str,
    boxes: ByName,
    changes: ByName | None = None,
) -> Trial:
    return Trial(name, label, ["goals"], dict(boxes), changes=changes or {})


@dataclass(frozen=True)
class GoalResult:
    """One goal: the target and the measured value, which is None if its trials are missing."""

    goal: str
    target: float
    found: float | None
    is_reached: bool | None
    by: str = ""


def check_goals(measurement: Measurement, matmul_tflops: float | None) -> list[dict[str, object]]:
    """Evaluate every goal and return the verdicts as plain JSON.

    `matmul_tflops` is the measured speed of a large bf16 matrix product on the device. Utilization
    is relative to it here, while `Row.mfu` is relative to the manufacturer's figure.
    """
    # The targets were set by hand before anything was measured.
    first, fair, three = (_done(measurement, name) for name in (FIRST, _FAIR, _THREE))
    fast, lean, light = (_done(measurement, name) for name in ("fast", "lean", "fast+light"))
    fastest = _fastest([fast, light, _done(measurement, "fast_graphs")])
    verdicts = [
        _at_least("times as fast as strict fp32", 6.0, _speed(fastest, first), fastest),
        _at_least("times as fast as TF32 and SDPA", 2.2, _speed(fastest, fair), fastest),
        _at_least(
            "times as fast as the guide's optimizations", 2.5, _speed(fastest, three), fastest
        ),
        _saved("less memory than fp32, no slower than the fastest", 0.60, first, fastest,
               [fast, light, lean], _NO_SLOWER),
        _saved("less memory than fp32, at most a tenth slower than the fastest", 0.78, first,
               fastest, [fast, light, lean], _HARDLY_SLOWER),
        _at_least("of the matrix speed at batch 8", 0.35, _share(fastest, matmul_tflops), fastest),
    ]  # fmt: skip
    wide = _done(measurement, "fast_batch32")
    verdicts.append(
        _at_least("of the matrix speed at batch 32", 0.50, _share(wide, matmul_tflops), wide)
    )
    small = measurement.trial("within_7.2gb")
    is_done = small.is_done if small is not None else None
    found = small.reserved_gib if small is not None else None
    verdicts.append(
        GoalResult(
            "GiB at batch 8 with all weights, limit 7.2 GB",
            round(SMALL_CARD_BYTES / GIB, 2),
            found,
            is_done,
            small.name if small is not None else "",
        )
    )
    return [asdict(verdict) for verdict in verdicts]


def _done(measurement: Measurement, name: str) -> Trial | None:
    row = measurement.trial(name)
    return row if row is not None and row.is_done else None


def _fastest(rows: list[Trial | None]) -> Trial | None:
    known = [row for row in rows if row is not None]
    return min(known, key=lambda row: row.s_per_step or 0.0) if known else None


def _speed(row: Trial | None, baseline: Trial | None) -> float | None:
    if row is None or baseline is None or not row.s_per_step or not baseline.s_per_step:
        return None
    return baseline.s_per_step / row.s_per_step


def _share(row: Trial | None, matmul_tflops: float | None) -> float | None:
    """Return the utilization (0..1) relative to the measured matrix speed."""
    if row is None or not matmul_tflops or not row.plain_flops or not row.s_per_step:
        return None
    return row.plain_flops / row.s_per_step / (matmul_tflops * 1e12)


def _at_least(goal: str, target: float, found: float | None, row: Trial | None) -> GoalResult:
    is_reached = None if found is None else found >= target
    return GoalResult(goal, target, found, is_reached, row.name if row is not None else "")


def _saved(
    goal: str,
    target: float,
    first: Trial | None,
    fastest: Trial | None,
    rows: list[Trial | None],
    slower: float,
) -> GoalResult:
    """Evaluate the memory saved by the smallest trial that takes at most `slower` times the best.

    The best is `swift`, the fastest trial; savings are relative to `first`.
    """
    if first is None or fastest is None or not first.peak_gib or not fastest.s_per_step:
        return _at_least(goal, target, None, None)
    most_s = slower * fastest.s_per_step
    # Without this bound, the goal could be reached by trading all speed for memory.
    known = [row for row in rows if row is not None and (row.s_per_step or 0.0) <= most_s]
    if not known:
        return _at_least(goal, target, None, None)
    smallest = min(known, key=lambda row: row.peak_gib or 0.0)
    return _at_least(goal, target, 1 - (smallest.peak_gib or 0.0) / first.peak_gib, smallest)
