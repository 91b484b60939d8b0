"""Advice: which boxes a machine should tick for a purpose and why, from facts and measurements."""

import re
from dataclasses import dataclass
from typing import Any

from trainer.catalog import discover
from trainer.device import Device
from trainer.measurements import Measurement, Row, list_kept
from trainer.presets import PRESETS
from trainer.specs import Optimization

PURPOSES = ("quick", "balanced", "quality", "low-memory")
"""What a run is for, by the names of the presets that suit every family."""

_ROOMY_GIB, _TIGHT_GIB = 24.0, 12.0
_TENSOR_CORES = (7, 0)  # the first compute capability that has them
_WORTH_SPEED, _WORTH_MEMORY = 1.03, 0.9
_BY_GPU = re.compile(r"-(\d+)gb$")


@dataclass(frozen=True)
class Advice:
    """One box: whether to tick it, with which options, and why."""

    name: str
    label: str
    tick: bool
    options: dict[str, Any]
    why: str


def advise(device: Device, family: str, purpose: str) -> list[Advice]:
    """Return advice for every box that works on a device; what was measured there counts first."""
    rows = _measured_alone(device, family)
    found = []
    for entry in discover("trainer.optimizations", Optimization).values():
        if entry.unavailable(device) is not None:
            continue
        tick, options, why = _judge(entry, device, purpose)
        known = rows.get(entry.name)
        if known is not None and entry.name not in ("lora", "memory_limit"):
            tick, why = _by_measurement(*known, purpose)
        found.append(Advice(entry.name, entry.label, tick, options if tick else {}, why))
    return found


def advise_preset(device: Device, family: str, purpose: str) -> str:
    """Return the preset for a purpose; a family with presets by GPU memory gets the one that fits.

    Those are for whole runs: a quick try stays a quick try.
    """
    sizes = {
        int(match[1]): name
        for name, preset in PRESETS.items()
        if family in preset.families and (match := _BY_GPU.search(name))
    }
    fitting = [size for size in sizes if size <= device.memory_gib * 1.02]
    if device.kind != "cuda" or purpose == "quick" or not fitting:
        return purpose
    return sizes[min(sizes) if purpose == "low-memory" else max(fitting)]


def _judge(entry: Optimization, device: Device, purpose: str) -> tuple[bool, dict[str, Any], str]:
    """Return tick, options and reason from what is known of hardware."""
    gib, is_gpu = device.memory_gib, device.kind == "cuda"
    saves = purpose == "low-memory"
    level = "full" if saves or gib < _TIGHT_GIB else "medium"
    generation = f"compute capability {device.capability[0]}.{device.capability[1]}"
    table: dict[str, tuple[bool, dict[str, Any], str]] = {
        "sdpa": (True, {}, "Computes the same with less memory, and faster on a GPU."),
        "mixed_precision": _judge_mixed_precision(device, generation, saves),
        "tf32": (is_gpu, {}, f"{generation} multiplies matrices in TF32, about as exactly."),
        "cudnn_benchmark": (
            is_gpu,
            {},
            "Tries convolution algorithms once; pays where clips have few lengths.",
        ),
        "gradient_checkpointing": (
            is_gpu and (saves or gib < _ROOMY_GIB),
            {"level": level},
            f"{gib:.0f} GB: keeps less for the way back, for about a fifth more time."
            if is_gpu and (saves or gib < _ROOMY_GIB)
            else f"{gib:.0f} GB are roomy; computing again would only cost time."
            if is_gpu
            else f"{gib:.0f} GB of the host: it costs time, so only where memory is short.",
        ),
        "compile": (
            is_gpu and purpose != "quick",
            {},
            "Decides by its own arithmetic whether a run is long enough."
            if is_gpu and purpose != "quick"
            else "A short run ends before compiling has paid; on a CPU measure it first.",
        ),
        "lora": (
            is_gpu and saves,
            {},
            "Trains small adapters only: the least memory. Needs a rate about ten times higher.",
        ),
        "memory_limit": (
            False,
            {},
            "Only if other programs need a part of the GPU.",
        ),
    }
    return table.get(entry.name, (False, {}, entry.help))


def _judge_mixed_precision(
    device: Device, generation: str, saves: bool
) -> tuple[bool, dict[str, Any], str]:
    if device.kind != "cuda":
        return False, {}, "A CPU gains little from it; measure it before you tick it."
    if device.capability < _TENSOR_CORES:
        return saves, {}, f"{generation} has no tensor cores: fp16 saves memory, not time."
    kind = "bf16" if device.has_bf16 else "fp16"
    return True, {}, f"{generation}: {kind} runs on its tensor cores."


def _by_measurement(row: Row, first: Row, made_at: str, purpose: str) -> tuple[bool, str]:
    """Return tick and reason from a row with this box alone and the plain one beside it."""
    assert row.s_per_step is not None and first.s_per_step is not None
    speed = first.s_per_step / row.s_per_step
    memory = row.peak_gib / first.peak_gib if row.peak_gib and first.peak_gib else 1.0
    saves = purpose == "low-memory"
    is_worth = memory < _WORTH_MEMORY if saves else speed > _WORTH_SPEED
    is_free = memory < _WORTH_MEMORY and speed > 1 / _WORTH_SPEED
    words = f"Measured here {made_at}: {speed:.2f}x as fast, memory {100 * (memory - 1):+.0f} %."
    return is_worth or is_free, words


def _measured_alone(device: Device, family: str) -> dict[str, tuple[Row, Row, str]]:
    """Return the newest rows of single boxes of a family on this machine, by box."""
    found: dict[str, tuple[Row, Row, str]] = {}
    for _, measurement in list_kept():
        first = measurement.row("fp32")
        if first is None or not first.is_done or not _is_alike(measurement, device, family):
            continue
        for row in measurement.rows:
            if row.is_done and len(row.boxes) == 1 and "alone" in row.groups:
                found.setdefault(next(iter(row.boxes)), (row, first, measurement.made_at))
    return found


def _is_alike(measurement: Measurement, device: Device, family: str) -> bool:
    is_here = measurement.machine.get("device") == device.name
    return is_here and measurement.model.get("family") == family
