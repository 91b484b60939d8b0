"""Our half of the comparison of checkpoint folders: reading, speaking and writing them."""

import subprocess
import sys
from pathlib import Path

import torch
import xtts_inputs as inputs
from torch import Tensor
from torchaudio.functional import resample

from trainer.models.xtts.checkpoint.base_folder import Base
from trainer.models.xtts.checkpoint.export import publish_folder
from trainer.models.xtts.inference.generation import Sampling, generate
from trainer.models.xtts.network.gpt import XttsGpt
from trainer.models.xtts.network.mel import conditioning_mel
from trainer.models.xtts.network.sizes import GptSizes, Sizes, VocoderSizes
from trainer.models.xtts.network.speaker_encoder import load_speaker_encoder
from trainer.models.xtts.network.vocoder import load_vocoder
from trainer.models.xtts.text.tokenizer import XttsTokenizer

SIZES = Sizes(GptSizes(**inputs.GPT), vocoder=VocoderSizes(latent_width=inputs.GPT["width"]))
"""The original's loader has no other sizes for the frozen networks than the published ones."""


def wrong_tensors(base: Base) -> float:
    """Count tensors of a converted base that are not what was drawn, and sizes read wrongly."""
    frozen = {**base.voice_state(), **{f"dvae.{k}": v for k, v in base.dvae_state().items()}}
    wrong = sum(
        not torch.equal(value, inputs.draw(_own_name(name), value.shape))
        for name, value in {**base.gpt_state(), **frozen}.items()
        if not inputs.is_fixed(name)
    )
    return float(wrong + (base.sizes != SIZES) + (not torch.equal(base.mel_stats(), _stats())))


def _stats() -> Tensor:
    return inputs.mel_stats()


def _own_name(name: str) -> str:
    """Return the name below its network, from which the weights are drawn."""
    for prefix in ("waveform_decoder.", "speaker_encoder.", "dvae."):
        name = name.removeprefix(prefix)
    return name


def _gpt_of(base: Base) -> XttsGpt:
    gpt = XttsGpt(base.sizes.gpt)
    gpt.load_state_dict(base.gpt_state(), strict=True)
    return gpt.eval()


@torch.no_grad()
def voice_of(base: Base) -> tuple[Tensor, Tensor]:
    """Return latents (1, 32, D) and embedding (1, S, 1) of the recording in "A voice"."""
    audio = inputs.speech("voice", 3.0, 22050)
    encoder = load_speaker_encoder(base.voice_state(), base.sizes.speaker)
    latents = _gpt_of(base).condition(conditioning_mel(audio, base.mel_stats()))
    return latents, encoder(resample(audio, 22050, 16000))[..., None]


@torch.no_grad()
def speak(base: Base) -> dict[str, Tensor]:
    """Speak the sentence greedily with the first voice, as inference does."""
    gpt = _gpt_of(base)
    latents, embedding = next(iter(base.voices().values()))
    tokens = torch.tensor(XttsTokenizer(base.vocab_json).encode(inputs.TEXT, "en"))
    sampling = Sampling(do_sample=False, repetition_penalty=5.0)
    spoken = generate(gpt, latents, tokens, sampling, seed=0)
    vocoder = load_vocoder(base.voice_state(), base.sizes.vocoder)
    heard = spoken.latents[None]
    return {"tokens": tokens, "gpt_latents": heard, "audio": vocoder(heard, embedding)[0]}


def export(base: Base, folder: Path, bf16: bool) -> None:
    """Write a folder with another GPT than the base's: one that ends its sentences."""
    state = {name: value.clone() for name, value in base.gpt_state().items()}
    state["mel_head.bias"][inputs.STOP_AUDIO] += inputs.STOP_BIAS
    publish_folder(
        folder,
        gpt_state=state,
        base=base,
        config=base.config,
        vocab_json=base.vocab_json,
        voices=base.voices(),
        licence=base.licence,
        bf16=bf16,
    )


def fine_tune(base: Path, folder: Path) -> Path:
    """Train two steps as a person does, and return the folder exported from the run."""
    (folder / "clips").mkdir()
    csv, run, target = inputs.write_corpus(folder / "clips"), folder / "run", folder / "fine_tuned"
    settings = {
        "--run": run, "--family": "xtts", "--base": base, "--train-csv": csv, "--steps": 2,
        "--batch-size": 2, "--lr": 1e-3, "--device": "cpu", "--loader-workers": 0,
        "--language": "en", "--preview-every": "9 steps",
    }  # fmt: skip
    _timbre("train", *(str(part) for pair in settings.items() for part in pair))
    _timbre("export", str(run), "--out", str(target))
    return target


def _timbre(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "trainer", *arguments], check=True)
