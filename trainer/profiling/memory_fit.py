"""Estimate whether a run fits into the memory of a device, and find changes that make it fit."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from trainer.config.presets import USABLE_SHARE
from trainer.core.device import Device
from trainer.core.options import describe
from trainer.core.registry import discover
from trainer.core.run_config import RunConfig
from trainer.core.specs import Optimization
from trainer.core.types import Clip
from trainer.data.lists.manifest import read_manifest
from trainer.profiling.measurements import s_per_step_of
from trainer.profiling.memory_estimate import estimate

_CHECKPOINTING = "gradient_checkpointing"
# Optimizations that save memory without changing what is trained, the cheapest in time first. SDPA
# and mixed precision usually save time too; recomputing blocks costs a second forward pass.
_SAVERS: tuple[tuple[str, dict[str, object]], ...] = (
    ("sdpa", {}),
    ("mixed_precision", {"mode": "auto"}),
    ("gradient_checkpointing", {"level": "full"}),
)


def estimate_fit(
    config: RunConfig, device: Device, *, clips: Sequence[Clip] = (), size: str = ""
) -> dict[str, Any]:
    """Return the estimate of a configuration as JSON values, with seconds per step if known.

    Clips are read from the configuration's CSV if none are given; without a CSV, clips of the
    family's usual maximum length are assumed. `s_per_step` is None unless a comparable
    configuration was measured on this machine.
    """
    found = estimate(config, clips=clips or _clips_of(config), device=device, size=size)
    # Not all of it: the CUDA context, other programs and fragmentation take their share.
    usable_gib = USABLE_SHARE * device.memory_gib
    known = s_per_step_of(
        config,
        machine=device.name,
        parameters=found.parameters,
        trained=found.trained,
        flops=found.flops,
    )
    return asdict(found) | {
        "device": device.name,
        "peak_gib": found.peak_gib,
        "usable_gib": usable_gib,
        "fits": found.peak_gib <= usable_gib,
        "s_per_step": known[0] if known else None,
        "s_per_step_from": known[1] if known else "",
    }


def estimate_levels(config: RunConfig, device: Device, *, size: str = "") -> list[dict[str, Any]]:
    """Return the memory and the extra computation of each level of gradient checkpointing.

    `more` is the extra FLOPs per step as a share of those without checkpointing.
    """
    clips = _clips_of(config)  # read once, because checking a CSV can take seconds
    others = {key: value for key, value in config.optimizations.items() if key != _CHECKPOINTING}
    rows: list[dict[str, Any]] = []
    box = discover("trainer.optimizations", Optimization)[_CHECKPOINTING]
    levels = next(option.choices for option in describe(box.options) if option.name == "level")
    for level in ("off", *levels):
        added = {} if level == "off" else {_CHECKPOINTING: {"level": level}}
        found = estimate_fit(
            config.with_values(optimizations=others | added), device, clips=clips, size=size
        )
        first = rows[0]["flops"] if rows else found["flops"]  # the level "off" comes first
        kept = {name: found[name] for name in ("peak_gib", "flops", "fits")}
        rows.append({"level": level, "more": found["flops"] / first - 1} | kept)
    return rows


def _clips_of(config: RunConfig) -> Sequence[Clip]:
    has_list = config.data.train_csv or config.data.train_data
    return read_manifest(config.data, seed=config.training.seed).train if has_list else ()


def find_fix(config: RunConfig, device: Device, *, size: str = "") -> dict[str, Any] | None:
    """Return the first set of memory-saving changes that makes a configuration fit, or None.

    The effective batch size stays the same: smaller micro-batches are accumulated.
    """
    clips = _clips_of(config)
    measures: list[str] = []
    for measure, changed in _measures(config, device):
        measures.append(measure)
        config = changed
        found = estimate_fit(config, device, clips=clips, size=size)
        if found["fits"]:
            # Only the last batch size counts; the ones tried before it did not fit.
            words = [one for one in measures if not one.startswith("batch")]
            words += [one for one in measures if one.startswith("batch")][-1:]
            return {"words": words, "config": config.to_json(), "peak_gib": found["peak_gib"]}
    return None


def _measures(config: RunConfig, device: Device) -> Iterator[tuple[str, RunConfig]]:
    """Yield changes that save memory, the cheapest first; each includes those before it."""
    boxes = discover("trainer.optimizations", Optimization)
    for name, options in _SAVERS:
        is_on = name in config.optimizations
        if not is_on and boxes[name].unavailable(device) is None:
            optimizations = config.optimizations | {name: options}
            config = config.with_values(optimizations=optimizations)
            yield boxes[name].label, config
    whole = config.training.batch_size * config.training.accumulate
    # Only divisors of the effective batch size keep it the same.
    # Halving at least each time tries few sizes, as every estimate counts a whole step.
    while (size := config.training.batch_size) > 1:
        size = next(fewer for fewer in range(size // 2, 0, -1) if whole % fewer == 0)
        training = replace(config.training, batch_size=size, accumulate=whole // size)
        config = config.with_values(training=training)
        yield f"batch size {size} x {whole // size}", config
