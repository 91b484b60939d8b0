"""Compute validation losses and previews with the weights that an export would hold."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from trainer.core.errors import CheckpointError, DataError
from trainer.core.events import Event, Notice, PreviewMade
from trainer.core.train_state import Setup, evaluation_weights
from trainer.data.audio.audio_io import write_wav
from trainer.training.distributed import sum_values

# Val batches in a picture: enough to see the trend, without the cost of a second validation.
# Chosen by hand.
_SHOWN_BATCHES = 8


@torch.no_grad()
def validate(setup: Setup) -> dict[str, float]:
    """Compute losses and metrics over all val clips, each clip once.

    Returns:
        `val/loss`, `val/loss/<part>`, `val/<measure>` and `val/<check>`; empty if there are no
        val clips or if the user stops the run meanwhile.
    """
    if setup.val_batches is None:
        return {}
    sums: dict[str, Tensor] = {}
    stop = setup.folder / "control" / "stop"
    with evaluation_weights(setup):
        for host_batch in setup.val_batches.micro_batches(1):
            # With several ranks, all must reach the sum below; none of them may return early.
            if setup.world.size == 1 and stop.exists():
                return {}
            batch = host_batch.to(setup.device)
            with setup.precision.autocast(setup.device):
                parts, measures = setup.family.validate(setup.model, batch)
            named = {"val/loss": torch.stack(list(parts.values())).sum()}
            named |= {f"val/loss/{name}": value for name, value in parts.items()}
            named |= {f"val/{name}": value for name, value in measures.items()}
            for name, value in named.items():
                # On the device: reading a number here would make the host wait for every batch.
                sums[name] = sums.get(name, torch.zeros((), device=setup.device)) + value.float()
        checks = setup.family.checks if setup.world.is_main else None
        found = checks(setup.model, setup.corpus.facts) if checks else {}
    means = {name: float(value) for name, value in sum_values(sums, setup.world).items()}
    return means | {f"val/{name}": value for name, value in found.items()}


def make_previews(setup: Setup, step: int) -> Iterator[Event]:
    """Yield the picture and the audio of a step, or the reason why there is none."""
    family = setup.family
    has_picture = family.illustrate is not None and setup.val_batches is not None
    silence = family.silent(setup.model) if family.silent is not None else ""
    try:
        if has_picture:
            yield make_picture(setup, step)
        if not silence:
            yield make_preview(setup, step)
        elif not has_picture:
            yield Notice("info", f"No preview was made: {silence}", "", step)
    # A preview that fails must not end the run.
    except DataError as error:
        remedy = "Choose another preview sentence for the next run."
        yield Notice("warning", f"No preview was made: {error}", remedy, step)
    except CheckpointError as error:
        yield Notice("warning", f"No preview was made: {error}", "", step)
    except OSError as error:
        remedy = f"Free some space on the disk that holds {setup.folder}. Training continues."
        yield Notice("warning", f"No preview was made: {error}.", remedy, step)


@torch.no_grad()
def make_picture(setup: Setup, step: int) -> PreviewMade:
    """Draw the family's picture of the first val batches and write it to the run folder."""
    assert setup.family.illustrate is not None and setup.val_batches is not None
    shown = setup.val_batches.micro_batches(1)[:_SHOWN_BATCHES]
    batches = (batch.to(setup.device) for batch in shown)
    with evaluation_weights(setup), setup.precision.autocast(setup.device):
        picture = setup.family.illustrate(setup.model, batches)
    path = Path("previews") / f"step-{step:08d}.svg"
    (setup.folder / path).write_text(picture.svg, encoding="utf-8")
    return PreviewMade(step, str(path), picture.words, "")


@torch.no_grad()
def make_preview(setup: Setup, step: int) -> PreviewMade:
    """Synthesize the preview sentence and write it to the run folder.

    Raises:
        DataError: the model cannot speak the sentence or does not know the speaker.
    """
    text, speaker = setup.preview_text, setup.preview_speaker
    with evaluation_weights(setup):
        speech = setup.family.synthesize(setup.model, setup.corpus.facts, text, speaker)
    path = Path("previews") / f"step-{step:08d}.wav"
    write_wav(setup.folder / path, speech.wave, speech.sample_rate)
    return PreviewMade(step, str(path), text, speaker)
