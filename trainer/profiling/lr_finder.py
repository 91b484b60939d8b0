"""Find a learning rate with a range test: one short run whose rate grows until the loss diverges.

The range test of Smith 2015 (arXiv 1506.01186, section 3.3), with one change. Losses of speech
batches differ more from each other than a few training steps change them. So each loss is compared
with the loss of the initial weights on the same batch with the same dropout, and only the
difference is smoothed and evaluated.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from trainer.config.resolve import find_base_lr, resolve
from trainer.core.errors import ConfigError, MissingDependency
from trainer.core.events import Emit
from trainer.core.metrics import GRAD_NORM
from trainer.core.run_config import RunConfig
from trainer.core.train_state import TrainState, World
from trainer.training.assemble import assemble
from trainer.training.loop import seed_step, train_step

Progress = Callable[[int, int], None]

# 25 steps for each of the four powers of ten of the default range; chosen by hand.
NUM_STEPS = 100
FEWEST_STEPS = 20  # fewer points leave nothing to smooth (chosen by hand)
_SPAN = 100.0
"""The test covers the usual rate divided by this to the usual rate times this (chosen by hand)."""
_MEMORY = 0.9  # running mean of about 10 steps, to stop the test without reacting to one batch
_MARGIN = 10.0  # rule of thumb: a tenth of the rate at which the loss diverges is safe


@dataclass(frozen=True)
class RateFinding:
    """What a range test found.

    changes: loss minus the initial weights' loss on the same batch; smooth: the same, smoothed.
    steepest: the rate at which the loss fell fastest. lost: the first rate that is too high, if
    one was reached. suggestion: the smaller of `steepest` and a tenth of `lost`; None if no rate
    lowered the loss.
    """

    optimizer: str
    rates: tuple[float, ...]
    losses: tuple[float, ...]
    changes: tuple[float, ...]
    smooth: tuple[float, ...]
    steepest: float | None
    lost: float | None
    suggestion: float | None
    text: str


def find_rate(
    config: RunConfig,
    *,
    lowest: float | None = None,
    highest: float | None = None,
    emit: Emit = lambda event: None,
    progress: Progress = lambda done, total: None,
) -> RateFinding:
    """Run a range test of `config` from its initial weights, and discard the trained model.

    The rate grows geometrically from `lowest` to `highest`, by default a hundredth to a hundred
    times the usual one, over `config.training.steps` or 100 steps.

    Raises:
        ConfigError: the optimizer finds its rate itself, or the bounds are not a valid range.
    """
    num_steps = config.training.steps or NUM_STEPS
    usual = _usual_rate(config)
    lowest, highest = lowest or usual / _SPAN, highest or usual * _SPAN
    if not 0 < lowest < highest or num_steps < FEWEST_STEPS:
        raise ConfigError(
            f"A test from {lowest:g} to {highest:g} in {num_steps} steps is not possible. Use a "
            f"lowest rate above 0, a higher highest rate and at least {FEWEST_STEPS} steps."
        )
    # Geometric, because optimizers react to ratios of rates, not to differences.
    rates = np.geomspace(lowest, highest, num_steps)
    with tempfile.TemporaryDirectory(prefix="timbre-rates-") as name:
        folder = Path(name)
        (folder / "checkpoints").mkdir()
        state = assemble(folder, _plain(config, num_steps), world=World(), emit=emit)
        try:
            losses, changes = measure_rates(state, rates, progress)
        finally:
            state.train_batches.close()
            if state.val_batches is not None:
                state.val_batches.close()
    return suggest_rate(config.optimizer.name, rates[: len(losses)], losses, changes)


def measure_rates(
    state: TrainState, rates: np.ndarray, progress: Progress = lambda done, total: None
) -> tuple[np.ndarray, np.ndarray]:
    """Train one step at each rate until the loss diverges; changes the model of `state`.

    Args:
        rates: float64 (steps,), rising.
        progress: called with the number of finished and of all forward passes over a batch.

    Returns:
        The losses, and their change against the initial weights; both (steps done,).
    """
    total = 2 * len(rates)
    untrained = _losses_of_initial_weights(state, len(rates), lambda done: progress(done, total))
    # A base rate of 1 makes the factor the rate itself, whatever schedule is configured.
    state.base_lr = 1.0
    state.schedule = replace(
        state.schedule, factor=lambda step, total_steps, options: float(rates[step - 1])
    )
    losses: list[float] = []
    smooth, weight = 0.0, 0.0
    for step in range(1, len(rates) + 1):
        parts = train_step(state, step)
        losses.append(sum(float(parts[name]) for name in parts if name != GRAD_NORM))
        # `weight` corrects the bias of a running mean that starts at zero, as in Adam.
        smooth = _MEMORY * smooth + (1 - _MEMORY) * (losses[-1] - untrained[step - 1])
        weight = _MEMORY * weight + (1 - _MEMORY)
        progress(len(rates) + step, total)
        # A loss that doubled on average will not recover; further steps would only cost time.
        if not math.isfinite(losses[-1]) or smooth / weight > abs(untrained[0]):
            break
    measured = np.array(losses)
    return measured, measured - untrained[: len(measured)]


def suggest_rate(
    optimizer: str, rates: np.ndarray, losses: np.ndarray, changes: np.ndarray
) -> RateFinding:
    """Find the steepest descent and the first rate that is too high.

    Args:
        rates, losses, changes: (steps,); the last loss may be NaN or infinite.
    """
    smooth = _smooth(changes)
    lost = _first_lost(rates, smooth, level=float(np.nanmean(np.abs(losses[:10] - changes[:10]))))
    steepest = _steepest(rates, smooth)
    limits = [rate for rate in (steepest, lost / _MARGIN if lost else None) if rate]
    # Two digits: a range test is no more precise than that.
    suggestion = float(f"{min(limits):.2g}") if steepest else None
    return RateFinding(
        optimizer=optimizer,
        rates=tuple(rates.tolist()),
        losses=tuple(losses.tolist()),
        changes=tuple(changes.tolist()),
        smooth=tuple(smooth.tolist()),
        steepest=steepest,
        lost=lost,
        suggestion=suggestion,
        text=_sentence(optimizer, suggestion, steepest, lost),
    )


def draw_rates(finding: RateFinding, path: Path) -> None:
    """Draw a range test into a PNG file.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("matplotlib", "The chart of the range test") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(finding.rates, finding.changes, color="#C8C8C8", label="every step")
    axes.plot(finding.rates, finding.smooth, color="#0072B2", label="smoothed")
    marks = (("suggestion", "#009E73"), ("steepest", "#E69F00"), ("lost", "#D55E00"))
    for name, colour in marks:
        rate = getattr(finding, name)
        if rate is not None:
            axes.axvline(rate, color=colour, linestyle="--", label=f"{name} {rate:.2g}")
    # Scale to the lowest loss: the divergence at the end would flatten everything else.
    deepest = max((-value for value in finding.changes if math.isfinite(value)), default=0.0)
    reach = max(1.1 * deepest, 1e-9)
    axes.set(xscale="log", ylim=(-reach, reach))
    axes.set(xlabel="Learning rate", ylabel="Change of the loss against the initial weights")
    axes.set_title(finding.text, fontsize=9, wrap=True, parse_math=False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def _usual_rate(config: RunConfig) -> float:
    entries = resolve(config)
    if entries.optimizer.effective_lr is not None:
        raise ConfigError(
            f"{entries.optimizer.label} finds its learning rate itself, so there is nothing to "
            "test. Tune its growth coefficient with a race or choose another optimizer."
        )
    return find_base_lr(entries)


def _plain(config: RunConfig, num_steps: int) -> RunConfig:
    """Return the configuration without averages and warm-ups, which would distort the range."""
    training = replace(config.training, steps=num_steps, epochs=None, ema_decay=0.0)
    entries = resolve(config)
    options = dict(config.optimizer.options)
    # A warm-up would multiply into the rate, and the curve would show another rate than it names.
    if hasattr(entries.optimizer_options, "warmup_steps"):
        options["warmup_steps"] = 0
    optimizer = replace(config.optimizer, options=options)
    return replace(config, training=training, optimizer=optimizer)


@torch.no_grad()
def _losses_of_initial_weights(
    state: TrainState, num_steps: int, told: Callable[[int], None]
) -> np.ndarray:
    """Return the loss of every step's batches without training, (steps,); restores the model."""
    # Layers such as BatchNorm change their buffers in a forward pass even without gradients.
    kept = {name: value.clone() for name, value in state.model.state_dict().items()}
    losses = []
    for step in range(1, num_steps + 1):
        # The same seed as in training, so that dropout cancels in the difference.
        seed_step(state, step)
        total = torch.zeros((), device=state.device)
        for host_batch in state.train_batches.micro_batches(step):
            with state.precision.autocast(state.device):
                parts = state.family.losses(state.model, host_batch.to(state.device))
            # Added up in fp32: the differences that matter here are small next to the loss.
            total = total + torch.stack(list(parts.values())).sum().float()
        losses.append(total)
        told(step)
    state.model.load_state_dict(kept)
    return torch.stack(losses).double().cpu().numpy()


def _smooth(changes: np.ndarray) -> np.ndarray:
    """Return running means of running medians, (steps,), centered so that nothing lags.

    The median keeps unusual batches from counting much. NaN and infinity become NaN.
    """
    half = max(2, len(changes) // 24)  # windows of about a twelfth of the range, chosen by hand
    known = changes[: len(changes) - _num_lost(changes)]
    smooth = np.full(len(changes), np.nan)
    medians = _running(known, half, np.median)
    smooth[: len(known)] = _running(medians, half, np.mean)
    return smooth


def _running(
    values: np.ndarray, half: int, summarize: Callable[[np.ndarray], np.floating]
) -> np.ndarray:
    """Summarize each value with its neighbors, (steps,); windows shrink evenly at the ends."""
    # An uneven window at an end would pull the curve towards its longer side.
    reach = [min(half, index, len(values) - 1 - index) for index in range(len(values))]
    windows = [values[index - by : index + by + 1] for index, by in enumerate(reach)]
    return np.array([float(summarize(window)) for window in windows])


def _num_lost(changes: np.ndarray) -> int:
    """Return how many values at the end are NaN or infinite."""
    finite = np.flatnonzero(np.isfinite(changes))
    return len(changes) - (int(finite[-1]) + 1 if finite.size else 0)


def _first_lost(rates: np.ndarray, smooth: np.ndarray, *, level: float) -> float | None:
    """Return the first rate after the lowest loss at which the loss exceeds its start, or None.

    A rate at which the loss becomes NaN counts too. `level` is the usual size of the loss.
    """
    finite = np.flatnonzero(np.isfinite(smooth))
    if finite.size < len(smooth):
        after = int(finite[-1]) + 1 if finite.size else 0
        return float(rates[after])
    lowest = int(np.argmin(smooth))
    # 2 % of the loss (chosen by hand): smaller changes are noise that smoothing left.
    above = np.flatnonzero(smooth[lowest:] > 0.02 * level)
    return float(rates[lowest + above[0]]) if above.size else None


def _steepest(rates: np.ndarray, smooth: np.ndarray) -> float | None:
    """Return the rate of the steepest descent before the lowest loss; None if it never fell."""
    known = smooth[np.isfinite(smooth)]
    if known.size < 3 or not known.min() < 0:
        return None
    lowest = max(2, int(np.argmin(known)) + 1)
    # Per log rate: on a linear axis the small rates would all look steep.
    slopes = np.gradient(known[: lowest + 1], np.log(rates[: lowest + 1][: len(known)]))
    return float(rates[int(np.argmin(slopes))])


def _sentence(
    optimizer: str, suggestion: float | None, steepest: float | None, lost: float | None
) -> str:
    if suggestion is None:
        return (
            f"No rate in this range lowered the loss with {optimizer}. Test another range or more "
            "steps. Weights that already fit the clips show no rate either."
        )
    end = f"it diverged from {lost:.2g} on" if lost else "no rate was too high"
    return (
        f"Suggested learning rate for {optimizer}: {suggestion:.2g}. The loss fell fastest at "
        f"{steepest:.2g}; {end}."
    )
