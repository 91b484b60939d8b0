"""Format a measurement as lines for a terminal and as a Markdown table."""

from trainer.profiling.measurements import Measurement, Trial


def format_trial(row: Trial, first: Trial | None) -> str:
    """Format a trial as one line, with its ratios to the first trial."""
    if not row.is_done:
        return f"{row.name:<45} {row.state}: {row.reason}"
    assert row.s_per_step is not None
    parts = [f"{row.name:<45} {row.s_per_step:8.4f} s/step"]
    # A ratio to itself says nothing, and without the first trial there is no ratio.
    if first is not None and first.is_done and row is not first:
        assert first.s_per_step is not None
        parts.append(f"{first.s_per_step / row.s_per_step:5.2f}x")
    if row.peak_gib is not None:
        parts.append(f"{row.peak_gib:7.3f} GiB")
    if row.predicted_gib is not None:
        parts.append(f"(estimated {row.predicted_gib:.3f})")
    if row.loss_drift is not None and row is not first:
        parts.append(f"loss drift {row.loss_drift:.1e}")
    if row.mfu is not None:
        parts.append(f"MFU {100 * row.mfu:.1f} %")
    # An optimization can be requested and still have no effect; the probe shows which.
    off = [name for name in row.boxes if not row.on.get(name, {}).get("on")]
    if off:
        parts.append(f"not active: {', '.join(off)}")
    return "  ".join(parts)


def to_markdown(measurement: Measurement) -> str:
    """Format the trials as a Markdown table of ratios to the first trial."""
    first = measurement.rows[0] if measurement.rows else None
    lines = [
        "| | s/step | speed | CPU s/step | peak GiB | memory | estimated GiB | loss drift "
        "| active |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in measurement.rows:
        lines.append(f"| {row.label} | {_cells(row, first)} |")
    return "\n".join(lines)


def _cells(row: Trial, first: Trial | None) -> str:
    if not row.is_done or first is None or not first.is_done:
        # 80 characters keep the table readable; the JSON file has the whole reason.
        return f"{row.state} | | | | | | | {row.reason[:80]}"
    assert row.s_per_step is not None and first.s_per_step is not None
    speed = f"{first.s_per_step / row.s_per_step:.2f}x"
    peak = _number(row.peak_gib, ".3f")
    memory = ""
    if row.peak_gib and first.peak_gib:
        memory = f"{100 * (row.peak_gib / first.peak_gib - 1):+.0f} %"
    on = [name for name in row.boxes if row.on.get(name, {}).get("on")]
    drift = "" if row is first else _number(row.loss_drift, ".1e")
    estimated = _number(row.predicted_gib, ".3f")
    shown = ", ".join(on) or ("none of them" if row.boxes else "")
    cpu = _number(row.cpu_s_per_step, ".3f")
    cells = [f"{row.s_per_step:.4f}", speed, cpu, peak, memory, estimated, drift, shown]
    return " | ".join(cells)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
