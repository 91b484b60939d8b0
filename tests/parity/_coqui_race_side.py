"""The original's side of the race: runs in an environment that holds coqui-tts.

    python _coqui_race_side.py FOLDER

Trains as coqui-tts' own fine-tuning recipe does, with its GPTTrainer, its loader and its Trainer;
plan.json in the folder says with what. Never imports our `trainer`: a package that coqui-tts
depends on has the same name.
"""

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import torch
from race_marks import Marks
from safetensors.torch import save_file
from TTS.config.shared_configs import BaseDatasetConfig
from TTS.tts.configs.xtts_config import XttsAudioConfig
from TTS.tts.datasets import load_tts_samples
from TTS.tts.layers.xtts.trainer.gpt_trainer import GPTArgs, GPTTrainer, GPTTrainerConfig

from trainer import Trainer, TrainerArgs

PACKAGES = ("coqui-tts", "coqui-tts-trainer", "torch", "torchaudio", "torchcodec", "transformers")


def main() -> None:
    """Train the epochs of the plan, in turns."""
    folder = Path(sys.argv[1])
    plan = json.loads((folder / "plan.json").read_text())
    torch.set_num_threads(1)
    marks = Marks()
    config = make_config(folder, plan)
    model = GPTTrainer(config)
    # The referee holds them against what the folder has.
    weights = {name: value.contiguous() for name, value in model.xtts.gpt.state_dict().items()}
    save_file(weights, folder / "coqui_starts_with.safetensors")
    facts = {
        "trained_parameters": sum(value.numel() for value in model.xtts.gpt.parameters()),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    train, val = load_tts_samples(config, eval_split=True, eval_split_max_size=256)
    referee = _Referee(marks, model, facts)
    trainer = Trainer(
        TrainerArgs(),
        config,
        output_path=str(folder / "coqui"),
        model=model,
        train_samples=train,
        eval_samples=val,
        parse_command_line_args=False,
        callbacks=referee.callbacks(),
    )
    trainer.fit()
    left_out = len(trainer.train_loader.dataset.failed_samples)
    left_out += len(val) - len(trainer.eval_loader.dataset)
    marks.finished(
        positions=referee.positions,
        clips_left_out=left_out,
        threads=torch.get_num_threads(),
    )


class _Referee:
    """Stops the clocks through the callbacks of the Trainer."""

    def __init__(self, marks: Marks, model: GPTTrainer, facts: dict[str, Any]) -> None:
        self.marks = marks
        self.facts = facts
        self.steps = 0
        self.epochs = 0
        self.positions = {"computed": 0, "real": 0}
        self._hook = model.xtts.gpt.gpt.register_forward_pre_hook(self._count, with_kwargs=True)

    def callbacks(self) -> dict[str, Any]:
        """Return them by the names the Trainer has for them; an epoch ends when it is saved."""
        return {
            "on_epoch_start": self._epoch_starts,
            "on_train_epoch_start": lambda trainer: self.marks.part_begins(),
            "on_train_step_start": lambda trainer: self.marks.part_ends("loader"),
            "on_train_step_end": self._step_ends,
            "on_train_epoch_end": lambda trainer: self.marks.trained(self.steps),
            "on_epoch_end": self._epoch_ends,
        }

    def _epoch_starts(self, trainer: Trainer) -> None:
        if self.epochs == 0:
            self.marks.prepared(**self.facts)
        self.steps = 0

    def _step_ends(self, trainer: Trainer) -> None:
        self.marks.part_ends("step")
        self.steps += 1

    def _epoch_ends(self, trainer: Trainer) -> None:
        # Counting reads the mask; the first epoch is not among those that are compared.
        self._hook.remove()
        self.epochs += 1
        self.marks.epoch_done(saved=len(list(trainer.output_path.glob("best_model_*.pth"))))

    def _count(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Count positions of the trunk, and those its mask shows."""
        if module.training:
            mask = kwargs["attention_mask"]
            self.positions["computed"] += mask.numel()
            self.positions["real"] += int(mask.sum())


def make_config(folder: Path, plan: dict[str, Any]) -> GPTTrainerConfig:
    """Return the settings of coqui-tts' own fine-tuning recipe, with the plan's batch and base.

    From TTS/demos/xtts_ft_demo/utils/gpt_train.py of the installed version.
    """
    base = folder / "base"
    sizes = json.loads((base / "config.json").read_text())["model_args"]
    arguments = {name: value for name, value in sizes.items() if name.startswith(("gpt_", "dec"))}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    arguments |= {
        "max_conditioning_length": 132300,
        "min_conditioning_length": 66150,
        "max_wav_length": 255995,
        "max_text_length": 200,
        "mel_norm_file": str(base / "mel_stats.pth"),
        "dvae_checkpoint": str(base / "dvae.pth"),
        "xtts_checkpoint": str(base / "model.pth"),
        "tokenizer_file": str(base / "vocab.json"),
    }
    dataset = BaseDatasetConfig(
        formatter="coqui",
        dataset_name="race",
        path=str(folder),
        meta_file_train="train.csv",
        meta_file_val="eval.csv",
        language="en",
    )
    return GPTTrainerConfig(
        epochs=plan["epochs"],
        output_path=str(folder / "coqui"),
        run_name="race",
        model_args=GPTArgs(**arguments),
        datasets=[dataset],
        audio=XttsAudioConfig(sample_rate=22050, dvae_sample_rate=22050, output_sample_rate=24000),
        batch_size=plan["batch_size"],
        eval_batch_size=plan["batch_size"],
        batch_group_size=48,
        num_loader_workers=plan["loader_workers"],
        num_eval_loader_workers=plan["loader_workers"],
        eval_split_max_size=256,
        print_step=50,
        plot_step=100,
        log_model_step=100,
        save_step=1000,
        save_n_checkpoints=1,
        save_checkpoints=True,
        print_eval=False,
        optimizer="AdamW",
        optimizer_wd_only_on_weights=True,
        optimizer_params={"betas": [0.9, 0.96], "eps": 1e-8, "weight_decay": 1e-2},
        lr=plan["lr"],
        lr_scheduler="MultiStepLR",
        lr_scheduler_params={
            "milestones": [900_000, 2_700_000, 5_400_000],
            "gamma": 0.5,
            "last_epoch": -1,
        },
        test_sentences=[],
    )


if __name__ == "__main__":
    main()
