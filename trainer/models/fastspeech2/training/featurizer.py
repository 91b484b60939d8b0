"""Compute the mel, fundamental frequency and energy of one clip, independently of other clips."""

import hashlib
import json
from dataclasses import asdict

import numpy as np

from trainer.core.errors import DataError
from trainer.core.types import Clip, Features
from trainer.data.audio.audio_io import load_audio, trim_silence
from trainer.models._layers.mel import MelSettings, log_mel, magnitudes
from trainer.models.fastspeech2.training.pitch import track_pitch

_VERSION = 2
"""Increase when features, aligner or survey change, so that cached features are recomputed."""

_SHORTEST_FRAMES = 4  # 46 ms; chosen by hand, the survey checks how many a text really needs


class SpeechFeaturizer:
    """Clip -> mel (T_mel, M) natural log, f0 (T_mel,) Hz or 0, energy (T_mel,)."""

    def __init__(self, settings: MelSettings, trim_silence: bool) -> None:
        self.settings = settings
        self.trim_silence = trim_silence
        parts = json.dumps([_VERSION, asdict(settings), trim_silence])
        self.fingerprint = hashlib.sha256(parts.encode()).hexdigest()[:16]

    def __call__(self, clip: Clip) -> Features:
        """Compute the features of one clip.

        Raises:
            DataError: the audio is shorter than four frames, or silent.
        """
        wave = load_audio(clip.audio_path, self.settings.sample_rate)
        if self.trim_silence:
            wave = trim_silence(wave, self.settings.sample_rate)
        if len(wave) < _SHORTEST_FRAMES * self.settings.hop_length:
            raise DataError(
                f"{clip.audio_path} has {len(wave) / self.settings.sample_rate:.3f} s of audio; "
                f"at least 0.05 s are needed. Remove the row or replace the recording."
            )
        # Three steps of 16-bit audio (-80 dB): a recording of nothing, with dither.
        if float(np.abs(wave).max()) < 1e-4:
            raise DataError(
                f"{clip.audio_path} is silent; expected speech. "
                "Remove the row or replace the recording."
            )
        magnitude = magnitudes(wave, self.settings)
        return {
            "mel": log_mel(magnitude, self.settings),
            "f0": track_pitch(wave, self.settings),
            "energy": np.linalg.norm(magnitude, axis=1).astype(np.float32),
        }
