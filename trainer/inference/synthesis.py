"""Open a checkpoint of a run, synthesize speech with it, and export its weights."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from trainer.checkpoints.checkpoint import newest_checkpoint, verify_checkpoint
from trainer.config.resolve import find_family
from trainer.core.device import GIB, list_devices, read_use_or_none
from trainer.core.errors import CheckpointError, ConfigError, RunExists
from trainer.core.options import build_options
from trainer.core.run_config import Choice, RunConfig
from trainer.core.specs import ModelFamily, Speech
from trainer.runs.run import Run
from trainer.training.assemble import choose_device

Said = TypeVar("Said")
_SPARE_GIB = 3.0  # activations, the CUDA context and a margin for training (chosen by hand)


def find_voice(folder: str | Path) -> Run | Path:
    """Return the run in a folder, or the folder itself if it holds an exported voice.

    Raises:
        RunError: the folder holds neither.
    """
    path = Path(folder)
    has_voice = (path / "model.safetensors").is_file() and (path / "config.json").is_file()
    # A run folder wins: it has checkpoints to choose from, an exported voice has one model.
    return path if has_voice and not (path / "run.json").exists() else Run.open(folder)


def open_voice(run: Run | Path, which: str = "best") -> tuple[ModelFamily, nn.Module, dict, Path]:
    """Load the model of a run's checkpoint: `best`, `last`, a step number, or `base`.

    `base` is what the run started from: the base weights with the run's speakers and symbols. An
    exported folder holds one model only.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or the run has no base.
    """
    if isinstance(run, Path):
        return (*_open_exported(run, which), run)
    if which == "base":
        folder = find_checkpoint(run, "last")
        return (*_open_base(folder, run), folder)
    folder = find_checkpoint(run, which)
    return (*open_export(folder, run.config), folder)


def open_export(folder: Path, config: RunConfig) -> tuple[ModelFamily, nn.Module, dict]:
    """Load a model for evaluation from a folder with `model.safetensors` and `config.json`."""
    family = find_family(config.family.name)
    # The options of the run, because the sizes of layers may depend on them.
    options = build_options(family.options, config.family.options, family.name)
    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return family, family.load(folder, options, facts).eval(), facts


def _open_exported(folder: Path, which: str) -> tuple[ModelFamily, nn.Module, dict]:
    # Both are accepted, so that callers with a default need not know about exports.
    if which not in ("best", "last"):
        raise CheckpointError(
            f"{folder} is an exported voice, which holds one checkpoint. Omit '{which}'."
        )
    try:
        name = json.loads((folder / "config.json").read_text(encoding="utf-8"))["family"]
        return open_export(folder, RunConfig(family=Choice(name)))
    except (ValueError, KeyError, TypeError, OSError):
        raise CheckpointError(
            f"{folder}/config.json does not describe a voice. Use a folder that `export` wrote."
        ) from None


def _open_base(folder: Path, run: Run) -> tuple[ModelFamily, nn.Module, dict]:
    if not run.config.base:
        raise CheckpointError(
            f"The run {run.name} started from random weights, so there is no base to hear. "
            "Choose best, last or a step."
        )
    family = find_family(run.config.family.name)
    options = build_options(family.options, run.config.family.options, family.name)
    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return family, family.load(Path(run.config.base), options, facts).eval(), facts


def find_checkpoint(run: Run, which: str) -> Path:
    """Return the verified folder of a run's `best` or `last` checkpoint or of a step.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    infos = run.checkpoints()
    # Before the first validation no checkpoint is the best; then the latest one is used.
    wanted = {"best": [info for info in infos if info.best] or infos, "last": infos}
    chosen = wanted.get(which, [info for info in infos if str(info.step) == which])
    # Falls back to an older checkpoint if the latest is damaged, as a resume does.
    if which == "last" and infos:
        newest, _ = newest_checkpoint(run.folder / "checkpoints")
        if newest is not None:
            return newest
    if not chosen:
        steps = ", ".join(str(info.step) for info in infos) or "none yet"
        raise CheckpointError(
            f"The run {run.name} has no checkpoint '{which}'. Use best, last or one of its steps: "
            f"{steps}."
        )
    verify_checkpoint(chosen[-1].folder)
    return chosen[-1].folder


def choose_inference_device(device: str, weights_gib: float) -> str:
    """Return the torch device to speak on; `auto` is a GPU with enough free memory, or the CPU.

    Listening must not make a training run out of memory, so the driver is queried before torch
    allocates anything.

    Raises:
        ConfigError: the device does not exist.
    """
    if device != "auto":
        return choose_device(device).torch_name
    gpus = [place for place in list_devices() if place.kind == "cuda"]
    # If CUDA_VISIBLE_DEVICES hides GPUs, torch's device numbers differ from the driver's.
    if torch.cuda.device_count() != len(gpus):
        return "cpu"
    for gpu in gpus:
        use = read_use_or_none(gpu)
        # Twice the weights plus the spare memory: a careful guess, not a measurement.
        if use and use.memory_total_gib - use.memory_used_gib > 2 * weights_gib + _SPARE_GIB:
            return gpu.torch_name
    return "cpu"


def move_to_device(model: nn.Module, device: str) -> None:
    """Move a model to the device that `choose_inference_device` returns.

    Raises:
        ConfigError: the device does not exist.
    """
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    model.to(choose_inference_device(device, size / GIB))


@torch.inference_mode()
def speak(
    run: Run | Path, text: str, *, speaker: str = "", which: str = "best", device: str = "auto"
) -> Speech:
    """Synthesize a sentence with a checkpoint of a run or with an exported voice.

    Raises:
        DataError: the text or the speaker cannot be used.
        CheckpointError: the checkpoint is missing or damaged.
        ConfigError: the device does not exist.
    """
    takes = speak_takes(run, [text], [which], speaker=speaker, device=device)
    return next(speech for _, _, speech in takes)


@torch.inference_mode()
def speak_takes(
    run: Run | Path,
    texts: Sequence[str],
    checkpoints: Sequence[str],
    *,
    speaker: str = "",
    device: str = "auto",
) -> Iterator[tuple[str, int, Speech]]:
    """Yield (checkpoint, text number, speech) for every pair; each checkpoint is opened once.

    Raises:
        DataError: a text or the speaker cannot be used.
        CheckpointError: a checkpoint is missing or damaged.
        ConfigError: the device does not exist.
    """
    for which in checkpoints:
        family, model, facts, _ = open_voice(run, which)
        move_to_device(model, device)
        voice = speaker or facts["speakers"][0]["name"]
        for number, text in enumerate(texts):
            say = partial(family.synthesize, model, facts, text, voice)
            yield which, number, _retry_on_cpu(model, say)


def _retry_on_cpu(model: nn.Module, say: Callable[[], Said]) -> Said:
    """Run the synthesis, and again on the CPU if the GPU runs out of memory."""
    try:
        return say()
    except torch.OutOfMemoryError:
        # Training may take memory at any time after the check; slow speech is better than none.
        model.to("cpu")
        return say()


@torch.inference_mode()
def speak_pieces(
    family: ModelFamily, model: nn.Module, facts: dict, text: str, speaker: str = ""
) -> Iterator[Speech]:
    """Yield speech in chunks, each as soon as it is ready; some families make only one.

    Raises:
        DataError: the text or the speaker cannot be used.
    """
    speaker = speaker or facts["speakers"][0]["name"]
    if family.stream is None:
        yield family.synthesize(model, facts, text, speaker)
    else:
        yield from family.stream(model, facts, text, speaker)


def export_voice(run: Run, folder: Path, *, which: str = "best", bf16: bool = False) -> Path:
    """Write a checkpoint's weights for use elsewhere; an existing folder is never overwritten.

    Raises:
        RunExists: the folder exists already.
        ConfigError: the family cannot write bf16 weights.
    """
    if bf16 and find_family(run.config.family.name).publish is None:
        raise ConfigError(
            f"The family {run.config.family.name} cannot export bf16 weights. Omit bf16."
        )
    family, model, facts, _ = open_voice(run, which)
    try:
        # Created after loading, so that a damaged checkpoint leaves no empty folder.
        folder.mkdir(parents=True)
    except FileExistsError:
        raise RunExists(f"{folder} exists already. Export to a new folder.") from None
    if family.publish is not None:
        family.publish(model, facts, folder, bf16)
    else:
        family.export(model, facts, folder)
    return folder
