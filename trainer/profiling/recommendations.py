"""Recommend optimizations for a machine and a purpose, each with a reason.

Rules of thumb about the hardware come first; a measurement made on the same machine replaces them.
"""

import re
from dataclasses import dataclass

from trainer.config.presets import PRESETS
from trainer.core.device import Device
from trainer.core.registry import discover
from trainer.core.specs import Optimization
from trainer.profiling.measurements import Measurement, Trial, list_kept

PURPOSES = ("quick", "balanced", "quality", "low-memory")
"""What a run is for; each is the name of a preset that works for every family."""

# GiB of GPU memory, chosen by hand: from 24 on gradient checkpointing is not recommended, below 12
# its strongest level is.
_ROOMY_GIB, _TIGHT_GIB = 24.0, 12.0
_TENSOR_CORES = (7, 0)  # first compute capability with tensor cores (Volta)
# Ratios to plain fp32, chosen by hand: a smaller gain is not worth another option.
_WORTH_SPEED, _WORTH_MEMORY = 1.03, 0.9
# Presets such as `xtts-24gb` name the GPU memory that they were made for.
_BY_GPU = re.compile(r"-(\d+)gb$")


@dataclass(frozen=True)
class Advice:
    """A recommendation for one optimization: on or off, with which options, and why."""

    name: str
    label: str
    tick: bool
    options: dict[str, object]
    why: str


def advise(device: Device, family: str, purpose: str) -> list[Advice]:
    """Return a recommendation for every optimization that works on a device.

    A measurement made on this machine takes precedence over the rules of thumb.
    """
    rows = _measured_alone(device, family)
    found = []
    for entry in discover("trainer.optimizations", Optimization).values():
        if entry.unavailable(device) is not None:
            continue
        tick, options, why = _judge(entry, device, purpose)
        # Not for these two: LoRA changes what is trained, and a memory limit is not a speed-up.
        known = rows.get(entry.name)
        if known is not None and entry.name not in ("lora", "memory_limit"):
            tick, why = _by_measurement(*known, purpose)
        found.append(Advice(entry.name, entry.label, tick, options if tick else {}, why))
    return found


def advise_preset(device: Device, family: str, purpose: str) -> str:
    """Return the preset for a purpose, or the one for this GPU's memory if the family has such.

    Presets by GPU memory are for full runs, so the purpose `quick` never returns one.
    """
    sizes = {
        int(match[1]): name
        for name, preset in PRESETS.items()
        if family in preset.families and (match := _BY_GPU.search(name))
    }
    # 2 % tolerance: a GPU reports slightly less memory than it is sold with.
    fitting = [size for size in sizes if size <= device.memory_gib * 1.02]
    if device.kind != "cuda" or purpose == "quick" or not fitting:
        return purpose
    return sizes[min(sizes) if purpose == "low-memory" else max(fitting)]


def _judge(
    entry: Optimization, device: Device, purpose: str
) -> tuple[bool, dict[str, object], str]:
    """Return on or off, options and reason, by rules of thumb about the hardware."""
    gib, is_gpu = device.memory_gib, device.kind == "cuda"
    saves = purpose == "low-memory"
    level = "full" if saves or gib < _TIGHT_GIB else "medium"
    generation = f"compute capability {device.capability[0]}.{device.capability[1]}"
    table: dict[str, tuple[bool, dict[str, object], str]] = {
        "sdpa": (True, {}, "Same result with less memory, and faster on a GPU."),
        "mixed_precision": _judge_mixed_precision(device, generation, saves),
        "tf32": (is_gpu, {}, f"{generation}: faster matrix products, slightly less precise."),
        "cudnn_benchmark": (
            is_gpu,
            {},
            "Benchmarks convolution algorithms once; pays off if clips have few different lengths.",
        ),
        "gradient_checkpointing": (
            is_gpu and (saves or gib < _ROOMY_GIB),
            {"level": level},
            f"{gib:.0f} GB: stores fewer activations, for about 20 % more time per step."
            if is_gpu and (saves or gib < _ROOMY_GIB)
            else f"{gib:.0f} GB is enough; recomputing activations would only cost time."
            if is_gpu
            else f"{gib:.0f} GB of host memory: it costs time, so use it only if memory is short.",
        ),
        "compile": (
            is_gpu and purpose != "quick",
            {},
            "Compiles only if the run is long enough to gain from it."
            if is_gpu and purpose != "quick"
            else "A short run ends before compiling pays off; on a CPU, measure it first.",
        ),
        "lora": (
            is_gpu and saves,
            {},
            "Trains small adapters only, with the least memory. Needs about ten times the usual "
            "learning rate.",
        ),
        "memory_limit": (
            False,
            {},
            "Only if other programs need part of the GPU's memory.",
        ),
    }
    return table.get(entry.name, (False, {}, entry.help))


def _judge_mixed_precision(
    device: Device, generation: str, saves: bool
) -> tuple[bool, dict[str, object], str]:
    if device.kind != "cuda":
        return False, {}, "A CPU gains little from it; measure it before you turn it on."
    if device.capability < _TENSOR_CORES:
        return saves, {}, f"{generation} has no tensor cores: fp16 saves memory, not time."
    kind = "bf16" if device.has_bf16 else "fp16"
    return True, {}, f"{generation}: {kind} runs on its tensor cores."


def _by_measurement(row: Trial, first: Trial, made_at: str, purpose: str) -> tuple[bool, str]:
    """Return on or off and the reason, from the rows with only this optimization and with none."""
    # `_measured_alone` returns finished rows only, and a finished row has a time.
    assert row.s_per_step is not None and first.s_per_step is not None
    speed = first.s_per_step / row.s_per_step
    memory = row.peak_gib / first.peak_gib if row.peak_gib and first.peak_gib else 1.0
    saves = purpose == "low-memory"
    is_worth = memory < _WORTH_MEMORY if saves else speed > _WORTH_SPEED
    is_free = memory < _WORTH_MEMORY and speed > 1 / _WORTH_SPEED
    words = f"Measured here {made_at}: {speed:.2f}x as fast, memory {100 * (memory - 1):+.0f} %."
    return is_worth or is_free, words


def _measured_alone(device: Device, family: str) -> dict[str, tuple[Trial, Trial, str]]:
    """Return the latest measurement of each single optimization on this machine, by its name.

    Each value holds the row with the optimization, the plain fp32 row and the date.
    """
    found: dict[str, tuple[Trial, Trial, str]] = {}
    for _, measurement in list_kept():
        first = measurement.trial("fp32")
        if first is None or not first.is_done or not _is_alike(measurement, device, family):
            continue
        for row in measurement.rows:
            if row.is_done and len(row.boxes) == 1 and "alone" in row.groups:
                found.setdefault(next(iter(row.boxes)), (row, first, measurement.made_at))
    return found


def _is_alike(measurement: Measurement, device: Device, family: str) -> bool:
    is_here = measurement.machine.get("device") == device.name
    return is_here and measurement.model.get("family") == family
