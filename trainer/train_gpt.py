"""train_gpt: fine-tune XTTS v2 with the arguments people know from the notebooks and web pages."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainer.assemble import check_before_start
from trainer.config import Choice, DataConfig, RunConfig, TrainingConfig, absolute_path
from trainer.errors import CheckpointError, ConfigError, RunError
from trainer.library import free_name
from trainer.options import build_options, option
from trainer.runs import Run
from trainer.speaking import export_voice

_SAMPLE_RATE = 22050


@dataclass(frozen=True)
class Arguments:
    """The arguments of `train_gpt`."""

    train_csv: str = option("", "Train CSV", "One clip a row.")
    eval_csv: str = option("", "Eval CSV", "Clips for validation.")
    output_path: str = option("output", "Output folder", "Where run folders appear.")
    language: str = option("en", "Language", "Of rows that name none; amh means am.")
    num_epochs: float = option(6.0, "Epochs", "Passes over every train clip.", min=0.01)
    batch_size: int = option(4, "Batch size", "Clips a micro-step.", min=1)
    grad_acumm: int = option(1, "Accumulation", "Micro-steps a step.", min=1)
    max_audio_length: int = option(255_995, "Longest clip", "In samples at 22 050 Hz.", min=11_025)
    version: str = option("v2.0.2", "Version", "Folder name of the published checkpoint.")
    custom_model: str = option("", "Custom model", "A checkpoint to start from instead.")
    enable_grad_checkpoint: bool = option(False, "Gradient checkpointing", "Less memory, slower.")
    enable_sdpa: bool = option(False, "SDPA", "Fused attention.")
    enable_mixed_precision: bool = option(False, "Mixed precision", "bf16 or fp16 products.")
    use_amharic_g2p: bool = option(False, "Amharic G2P", "Spell Amharic by sound.")


class Trained(NamedTuple):
    """What people expect back, as paths."""

    speaker_path: str
    config: str
    checkpoint: str
    vocab: str
    exp_path: str
    ref_audio: str


def train_gpt(**arguments: Any) -> Trained:
    """Fine-tune the GPT of XTTS v2, wait for the end, and export the best checkpoint.

    Takes the fields of `Arguments` by name. The base is `custom_model` if given, else a folder
    named after `version` below `output_path/base_models` or `base_models`.

    Returns:
        Paths of speakers_xtts.pth, config.json, model.pth, vocab.json, the run folder and a
        reference recording of the first speaker.

    Raises:
        ConfigError: an argument that does not exist or cannot be used.
        CheckpointError: no published checkpoint is found.
        RunError: the training failed; its sentence says why.
    """
    chosen = build_options(Arguments, arguments, "train_gpt")
    config = run_config(chosen)
    check_before_start(config)
    output = Path(absolute_path(chosen.output_path))
    output.mkdir(parents=True, exist_ok=True)
    run = Run.create(output / free_name(output, "xtts"), config)
    process = run.start()
    status = run.wait()
    process.wait()
    if status.state != "finished":
        raise RunError(f"The run {run.folder} {status.state}: {status.reason} {status.remedy}")
    folder = export_voice(run, run.folder / "ready")
    paths = (folder / name for name in ("speakers_xtts.pth", "config.json", "model.pth"))
    speakers, settings, model = (str(path) for path in paths)
    vocab, reference = str(folder / "vocab.json"), str(folder / "reference.wav")
    return Trained(speakers, settings, model, vocab, str(run.folder), reference)


def run_config(chosen: Arguments) -> RunConfig:
    """Return the RunConfig that the arguments stand for."""
    if not chosen.train_csv:
        raise ConfigError("train_gpt needs train_csv, the path of a CSV with one clip a row.")
    asked = {
        "gradient_checkpointing": chosen.enable_grad_checkpoint,
        "sdpa": chosen.enable_sdpa,
        "mixed_precision": chosen.enable_mixed_precision,
    }
    options = {
        "amharic_g2p": chosen.use_amharic_g2p,
        "max_audio_s": round(chosen.max_audio_length / _SAMPLE_RATE, 3),
    }
    return RunConfig(
        data=DataConfig(
            train_csv=chosen.train_csv, eval_csv=chosen.eval_csv, language=_language(chosen)
        ),
        training=TrainingConfig(
            epochs=chosen.num_epochs, batch_size=chosen.batch_size, accumulate=chosen.grad_acumm
        ),
        family=Choice("xtts", options),
        base=str(_find_base(chosen)),
        optimizer=Choice("adamw", {"beta2": 0.96, "weight_decay": 0.01}),
        optimizations={name: {} for name, wanted in asked.items() if wanted},
    ).with_absolute_paths()


def _language(chosen: Arguments) -> str:
    return "am" if chosen.language == "amh" else chosen.language


def _find_base(chosen: Arguments) -> Path:
    if chosen.custom_model:
        return Path(chosen.custom_model)
    places = [
        Path(chosen.output_path) / "base_models" / chosen.version,
        Path("base_models") / chosen.version,
    ]
    for place in places:
        if place.is_dir():
            return place
    raise CheckpointError(
        f"No XTTS checkpoint {chosen.version} is at {' or '.join(map(str, places))}. Download "
        "model.pth, config.json, vocab.json, dvae.pth, mel_stats.pth and speakers_xtts.pth of "
        f"XTTS {chosen.version} into such a folder, or name your own with custom_model."
    )
