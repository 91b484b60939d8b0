"""Speak a text with a trained network, sentence by sentence, through the chosen vocoder."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from trainer.core.errors import CheckpointError, DataError
from trainer.core.specs import Speech
from trainer.data.text.sentences import split_sentences
from trainer.models._layers.hifigan import Hifigan, HifiganSettings, fold_weight_norm
from trainer.models._layers.mel import MelSettings
from trainer.models.fastspeech2.checkpoint.weights import read_tensors
from trainer.models.fastspeech2.facts import Facts
from trainer.models.fastspeech2.inference import vocoder
from trainer.models.fastspeech2.network import FastSpeech2, Prediction
from trainer.models.fastspeech2.tokens import encode_symbols, split_symbols

_PAUSE_S = 0.12  # between sentences, in addition to the pauses that the network predicts


def synthesize(model: nn.Module, facts: Facts, text: str, speaker: str) -> Speech:
    """Speak a text in the voice of a speaker; an empty name selects the first speaker.

    Symbols that the network has not learned are left out.

    Raises:
        DataError: the speaker is unknown, or no part of the text can be spoken.
        CheckpointError: the HiFi-GAN weights cannot be used.
    """
    spoken = list(stream(model, facts, text, speaker))
    return Speech(np.concatenate([piece.wave for piece in spoken]), spoken[0].sample_rate)


def stream(model: nn.Module, facts: Facts, text: str, speaker: str) -> Iterator[Speech]:
    """Yield the same audio as `synthesize`, one sentence at a time.

    Raises:
        DataError: the speaker is unknown, or no part of the text can be spoken.
        CheckpointError: the HiFi-GAN weights cannot be used.
    """
    if not isinstance(model, FastSpeech2):
        raise TypeError(f"expected FastSpeech2, not {type(model).__name__}")
    number = _find_speaker(facts, speaker)
    language = facts["speakers"][number]["language"]
    settings = MelSettings(**facts["mel"])
    sentences = split_sentences(text)
    spelled = split_symbols(sentences, [language] * len(sentences), facts["tokens"])
    encoded = [encode_symbols(symbols, facts["symbols"]) for symbols in spelled]
    # A sentence of marks only is skipped, and the others are still spoken.
    encoded = [tokens for tokens in encoded if len(tokens)]
    if not encoded:
        raise DataError(
            f"No part of '{text[:60]}' can be spoken; expected letters that occur in the training "
            "data. Write the text in the language of the training data."
        )
    pause = np.zeros(int(_PAUSE_S * settings.sample_rate), np.float32)
    for index, tokens in enumerate(encoded):
        wave = _speak(model, facts, tokens, number, settings)
        yield Speech(np.concatenate([pause, wave]) if index else wave, settings.sample_rate)


def predict_pitch(prediction: Prediction, facts: Facts, speaker: int) -> np.ndarray:
    """Return the F0 (T_mel,) in Hz of the first clip in a prediction, 0 where unvoiced."""
    mel = prediction.mel_refined[0].float().cpu().numpy()
    voice = facts["speakers"][speaker]
    durations = prediction.durations[0].cpu().numpy()
    ends = np.cumsum(durations)
    # Predicted durations may be 0; such tokens have no frame and no pitch.
    spoken = durations > 0
    centres = (ends - durations / 2)[spoken]
    pitch = prediction.pitch[0].float().cpu().numpy()[spoken]
    # Frames and tokens are placed by their centres, hence the halves.
    log_f0 = np.interp(np.arange(len(mel)) + 0.5, centres, pitch * voice["pitch_std"])
    # Checkpoints without a voicing classifier count as voiced everywhere.
    weights = np.asarray(facts.get("voicing") or [0.0] * mel.shape[1] + [1.0])
    padded = np.pad(mel @ weights[:-1] + weights[-1], 1, mode="edge")
    # The median of three frames keeps single frames from flickering.
    voicing = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    return np.where(voicing > 0, np.exp(log_f0 + voice["pitch_mean"]), 0.0)


def _speak(
    model: FastSpeech2,
    facts: Facts,
    tokens: np.ndarray,
    speaker: int,
    settings: MelSettings,
) -> np.ndarray:
    """Return the audio (T_wav,) of one sentence of tokens (T_text,)."""
    device = next(model.parameters()).device
    batch = torch.from_numpy(tokens.astype(np.int64))[None].to(device)
    # Previews happen during training, which has to continue in its own mode.
    was_training = model.training
    model.eval()
    with torch.no_grad():
        mask = torch.ones_like(batch, dtype=torch.bool)
        prediction = model(batch, mask, torch.tensor([speaker], device=device))
        mel = prediction.mel_refined[0].float()
        if facts["vocoder"] == "hifigan":
            generator = load_hifigan(facts["hifigan"]).to(device)
            wave = generator(mel.t()[None])[0].cpu().numpy()
        elif facts["vocoder"] == "pulse":
            f0 = predict_pitch(prediction, facts, speaker)
            wave = vocoder.pulse_noise(mel.cpu().numpy(), f0, settings)
        else:
            wave = vocoder.griffin_lim(mel.cpu().numpy(), settings)
    model.train(was_training)
    return wave


def _find_speaker(facts: Facts, speaker: str) -> int:
    names = [voice["name"] for voice in facts["speakers"]]
    if not speaker:
        return 0
    if speaker not in names:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        raise DataError(
            f"This model has no speaker '{speaker}'. Choose one of: {', '.join(names[:8])}{more}."
        )
    return names.index(speaker)


@lru_cache(maxsize=1)
def load_hifigan(path: str) -> Hifigan:
    """Load a HiFi-GAN V1 generator, with or without weight norm.

    Raises:
        CheckpointError: the file is missing or is not such a generator.
    """
    if not path or not Path(path).is_file():
        raise CheckpointError(
            f"The HiFi-GAN weights '{path}' do not exist. Enter the path of a generator checkpoint "
            "under HiFi-GAN weights, or choose another vocoder."
        )
    content = read_tensors(Path(path))
    generator = Hifigan(HifiganSettings())
    try:
        if not isinstance(content, dict):
            raise KeyError("no weights")
        # The authors' checkpoints have the weights under `generator`.
        generator.load_state_dict(fold_weight_norm(content.get("generator", content)))
    except (AttributeError, KeyError, RuntimeError) as error:
        detail = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path} is not a HiFi-GAN V1 generator for 80 mels: {detail}. "
            "Choose another file or another vocoder."
        ) from None
    return generator.eval()
