"""`train_gpt`: fine-tune XTTS v2 with the arguments known from community notebooks and pages."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config.resolve import with_absolute_paths
from trainer.core.errors import CheckpointError, ConfigError, RunError
from trainer.core.options import build_options, option
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig, absolute_path
from trainer.inference.synthesis import export_voice
from trainer.runs.run import Run
from trainer.runs.run_store import free_name
from trainer.training.assemble import check_before_start

_SAMPLE_RATE = 22050  # of XTTS' training audio, the unit of `max_audio_length`


@dataclass(frozen=True)
class Arguments:
    """The arguments of `train_gpt`, spelled (`grad_acumm` too) as in the community's scripts."""

    train_csv: str = option("", "Train CSV", "One clip per row.")
    eval_csv: str = option("", "Eval CSV", "Clips for validation.")
    output_path: str = option("output", "Output folder", "Folder for run folders.")
    language: str = option("en", "Language", "For rows without a language; amh means am.")
    num_epochs: float = option(6.0, "Epochs", "Passes over all training clips.", min=0.01)
    batch_size: int = option(4, "Batch size", "Clips per micro-step.", min=1)
    grad_acumm: int = option(1, "Accumulation", "Micro-steps per step.", min=1)
    # 255,995 samples are 11.61 s, the longest clip of the published XTTS recipe.
    max_audio_length: int = option(255_995, "Longest clip", "In samples at 22,050 Hz.", min=11_025)
    version: str = option("v2.0.2", "Version", "Folder name of the published checkpoint.")
    custom_model: str = option("", "Custom model", "Checkpoint to start from instead.")
    enable_grad_checkpoint: bool = option(False, "Gradient checkpointing", "Less memory, slower.")
    enable_sdpa: bool = option(False, "SDPA", "Fused attention.")
    enable_mixed_precision: bool = option(False, "Mixed precision", "bf16 or fp16 arithmetic.")
    use_amharic_g2p: bool = option(False, "Amharic G2P", "Convert Amharic text to sounds.")


class Trained(NamedTuple):
    """The paths that `train_gpt` returns, named as in the community's scripts."""

    speaker_path: str
    config: str
    checkpoint: str
    vocab: str
    exp_path: str
    ref_audio: str


def train_gpt(**arguments: Any) -> Trained:
    """Fine-tune the GPT of XTTS v2, wait until it ends, and export the best checkpoint.

    Takes the fields of `Arguments` as keyword arguments. The base is `custom_model` if given, else
    a folder named after `version` in `output_path/base_models` or `base_models`.

    Returns:
        Paths of speakers_xtts.pth, config.json, model.pth, vocab.json, the run folder and a
        reference recording of the first speaker.

    Raises:
        ConfigError: an argument is unknown or invalid.
        CheckpointError: no published checkpoint was found.
        RunError: the training failed; the message says why.
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
        end = f"The run {run.folder} ended as {status.state}"
        raise RunError(f"{end}: {status.reason} {status.remedy}")
    folder = export_voice(run, run.folder / "ready")
    paths = (folder / name for name in ("speakers_xtts.pth", "config.json", "model.pth"))
    speakers, settings, model = (str(path) for path in paths)
    vocab, reference = str(folder / "vocab.json"), str(folder / "reference.wav")
    return Trained(speakers, settings, model, vocab, str(run.folder), reference)


def run_config(chosen: Arguments) -> RunConfig:
    """Translate the arguments into a RunConfig."""
    if not chosen.train_csv:
        raise ConfigError("train_gpt needs train_csv, the path of a CSV with one clip per row.")
    asked = {
        "gradient_checkpointing": chosen.enable_grad_checkpoint,
        "sdpa": chosen.enable_sdpa,
        "mixed_precision": chosen.enable_mixed_precision,
    }
    options = {
        "amharic_g2p": chosen.use_amharic_g2p,
        "max_audio_s": round(chosen.max_audio_length / _SAMPLE_RATE, 3),
    }
    config = RunConfig(
        data=DataConfig(
            train_csv=chosen.train_csv, eval_csv=chosen.eval_csv, language=_language(chosen)
        ),
        training=TrainingConfig(
            epochs=chosen.num_epochs, batch_size=chosen.batch_size, accumulate=chosen.grad_acumm
        ),
        family=Choice("xtts", options),
        base=str(_find_base(chosen)),
        # As in coqui-tts' GPT recipe: AdamW with betas 0.9/0.96 and weight decay 0.01.
        optimizer=Choice("adamw", {"beta2": 0.96, "weight_decay": 0.01}),
        optimizations={name: {} for name, wanted in asked.items() if wanted},
    )
    return with_absolute_paths(config)


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
        f"There is no XTTS checkpoint {chosen.version} in {' or '.join(map(str, places))}. "
        "Download model.pth, config.json, vocab.json, dvae.pth, mel_stats.pth and "
        f"speakers_xtts.pth of XTTS {chosen.version} into one of these folders, or set "
        "custom_model to a folder of your own."
    )
