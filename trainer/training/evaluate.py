"""Compute validation losses and previews with the weights that an export would hold."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from trainer.core.errors import CheckpointError, DataError
from trainer.core.events import Event, Notice, PreviewMade
from trainer.core.metrics import VAL_LOSS, val_measure, val_part
from trainer.core.train_state import TrainState
from trainer.data.audio.audio_io import write_wav
from trainer.state.weights import evaluation_weights
from trainer.training.distributed import sum_values

# Val batches in a picture: enough to see the trend, without the cost of a second validation.
# Chosen by hand.
_SHOWN_BATCHES = 8


@torch.no_grad()
def validate(state: TrainState) -> dict[str, float]:
    """Compute losses and metrics over all val clips, each clip once.

    Returns:
        `val/loss`, `val/loss/<part>`, `val/<measure>` and `val/<check>`; empty if there are no
        val clips or if the user stops the run meanwhile.
    """
    if state.val_batches is None:
        return {}
    sums: dict[str, Tensor] = {}
    stop = state.folder / "control" / "stop"
    with evaluation_weights(state):
        for host_batch in state.val_batches.micro_batches(1):
            # With several ranks, all must reach the sum below; none of them may return early.
            if state.world.size == 1 and stop.exists():
                return {}
            batch = host_batch.to(state.device)
            with state.precision.autocast(state.device):
                parts, measures = state.family.validate(state.model, batch)
            named = {VAL_LOSS: torch.stack(list(parts.values())).sum()}
            named |= {val_part(name): value for name, value in parts.items()}
            named |= {val_measure(name): value for name, value in measures.items()}
            for name, value in named.items():
                # On the device: reading a number here would make the host wait for every batch.
                sums[name] = sums.get(name, torch.zeros((), device=state.device)) + value.float()
        checks = state.family.checks if state.world.is_main else None
        found = checks(state.model, state.corpus.facts) if checks else {}
    means = {name: float(value) for name, value in sum_values(sums, state.world).items()}
    return means | {val_measure(name): value for name, value in found.items()}


def make_previews(state: TrainState, step: int) -> Iterator[Event]:
    """Yield the picture and the audio of a step, or the reason why there is none."""
    family = state.family
    has_picture = family.illustrate is not None and state.val_batches is not None
    silence = family.silent(state.model) if family.silent is not None else ""
    try:
        if has_picture:
            yield make_picture(state, step)
        if not silence:
            yield make_preview(state, step)
        elif not has_picture:
            yield Notice("info", f"No preview was made: {silence}", "", step)
    # A preview that fails must not end the run.
    except DataError as error:
        remedy = "Choose another preview sentence for the next run."
        yield Notice("warning", f"No preview was made: {error}", remedy, step)
    except CheckpointError as error:
        yield Notice("warning", f"No preview was made: {error}", "", step)
    except OSError as error:
        remedy = f"Free some space on the disk that holds {state.folder}. Training continues."
        yield Notice("warning", f"No preview was made: {error}.", remedy, step)


@torch.no_grad()
def make_picture(state: TrainState, step: int) -> PreviewMade:
    """Draw the family's picture of the first val batches and write it to the run folder."""
    assert state.family.illustrate is not None and state.val_batches is not None
    shown = state.val_batches.micro_batches(1)[:_SHOWN_BATCHES]
    batches = (batch.to(state.device) for batch in shown)
    with evaluation_weights(state), state.precision.autocast(state.device):
        picture = state.family.illustrate(state.model, batches)
    path = Path("previews") / f"step-{step:08d}.svg"
    (state.folder / path).write_text(picture.svg, encoding="utf-8")
    return PreviewMade(step, str(path), picture.words, "")


@torch.no_grad()
def make_preview(state: TrainState, step: int) -> PreviewMade:
    """Synthesize the preview sentence and write it to the run folder.

    Raises:
        DataError: the model cannot speak the sentence or does not know the speaker.
    """
    text, speaker = state.preview_text, state.preview_speaker
    with evaluation_weights(state):
        speech = state.family.synthesize(state.model, state.corpus.facts, text, speaker)
    path = Path("previews") / f"step-{step:08d}.wav"
    write_wav(state.folder / path, speech.wave, speech.sample_rate)
    return PreviewMade(step, str(path), text, speaker)
