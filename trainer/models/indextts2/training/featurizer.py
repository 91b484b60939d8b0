"""Compute a clip's codes and voice from audio, or read them from the arrays of a manifest."""

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from trainer.core.errors import DataError
from trainer.core.types import Clip, Features
from trainer.data.audio.audio_io import load_audio
from trainer.data.features.cache import content_hash
from trainer.models.indextts2.checkpoint.base_folder import CODEC_FILE, Base
from trainer.models.indextts2.network.codec import CodecEncoder, load_codec, make_codec
from trainer.models.indextts2.network.gpt import Conditioning
from trainer.models.indextts2.network.sizes import CODES_A_SECOND, MAX_REFERENCE_S
from trainer.models.indextts2.options import Options
from trainer.models.indextts2.training.filterbank import SAMPLE_RATE, filterbank
from trainer.models.indextts2.training.semantic import SemanticFeatures

_VERSION = 1
"""Increase when the features or the survey change, so that cached features are recomputed."""

_SHORTEST_S = 0.5  # chosen by hand; coqui-tts has the same limit for XTTS
_MOST_REFERENCE = round(MAX_REFERENCE_S * CODES_A_SECOND)


class IndexFeaturizer:
    """Clip -> codes (n,) int16, 50 per second; condition (num_latents, D), emotion (D,) float16.

    If the conditioning is trained, there is a reference (T, F) float16 instead of condition and
    emotion: the semantic features that the conditioning encodes, at most 15 s as at inference. Also
    returned are text_ids (L,) int32, if a manifest has them, and is_pair () int8.
    """

    def __init__(self, base: Base, options: Options) -> None:
        self.base = base
        self.options = options
        # Everything that changes the features. w2v-bert-2.0 counts by its path, because
        # hashing 2.3 GB would take seconds.
        parts: list[object] = [
            _VERSION,
            base.sizes.to_json(),
            options.conditioning,
            options.emotion,
        ]
        parts += [str(base.folder), options.w2v_bert]
        parts.append(content_hash(options.codec) if options.codec else "")
        self.fingerprint = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def __call__(self, clip: Clip) -> Features:
        """Compute or read the features of one clip.

        Raises:
            DataError: its arrays are unusable, its audio is too short, or the weights that turn
                audio into codes are not set.
        """
        if clip.arrays:
            return _Arrays(clip, self.base, self.options).read()
        return self._of_audio(clip)

    @torch.inference_mode()
    def _of_audio(self, clip: Clip) -> Features:
        wave = load_audio(clip.audio_path, SAMPLE_RATE)
        if len(wave) < _SHORTEST_S * SAMPLE_RATE:
            raise DataError(
                f"{clip.audio_path} lasts {len(wave) / SAMPLE_RATE:.2f} s; IndexTTS-2 needs at "
                f"least {_SHORTEST_S} s. Merge it with the next clip or remove the row."
            )
        semantic, codec, conditioning = _networks(self.base, self.options)
        features = semantic(filterbank(wave))  # (1, T, F)
        codes = codec(features)[0]
        found = {"codes": codes.numpy().astype(np.int16), "is_pair": np.array(0, np.int8)}
        heard = features[:, :_MOST_REFERENCE]  # upstream's inference cuts references too
        if conditioning is None:
            return found | {"reference": heard[0].numpy().astype(np.float16)}
        condition, emotion = conditioning(heard, torch.ones(heard.shape[:2], dtype=torch.bool))
        return found | {
            "condition": condition[0].numpy().astype(np.float16),
            "emotion": emotion[0].numpy().astype(np.float16),
        }


class _Arrays:
    """Reads the arrays of a manifest row, single or pair, and checks them against the network."""

    def __init__(self, clip: Clip, base: Base, options: Options) -> None:
        self.clip = clip
        self.sizes = base.sizes
        self.is_pair = "target_codes" in clip.arrays and "prompt_condition" in clip.arrays
        self.options = options

    def read(self) -> Features:
        if self.options.conditioning == "trained":
            raise DataError(
                "its manifest row has a precomputed voice, which cannot be trained. Set Voices to "
                "precomputed, or use audio."
            )
        sizes, target = self.sizes, "target_" if self.is_pair else ""
        prompt = "prompt_" if self.is_pair else ""
        found = {
            "codes": self._codes(f"{target}codes"),
            "condition": self._voice(f"{prompt}condition", (sizes.num_latents, sizes.width)),
            "emotion": self._voice(self._emotion(), (sizes.width,)),
            "is_pair": np.array(self.is_pair, np.int8),
        }
        if f"{target}text_ids" in self.clip.arrays:
            ids = self._load(f"{target}text_ids").astype(np.int32).reshape(-1)
            found["text_ids"] = ids[: self.clip.lengths.get(f"{target}text_ids", len(ids))]
        return found

    def _emotion(self) -> str:
        if not self.is_pair:
            return "emo_vec"
        order = ["prompt_emo_vec", "target_emo_vec"]
        if self.options.emotion == "own clip":
            order.reverse()
        return next((name for name in order if name in self.clip.arrays), order[0])

    def _codes(self, name: str) -> np.ndarray:
        codes = self._load(name).reshape(-1)
        length = self.clip.lengths.get(name, len(codes))
        # Community preprocessing in batches stores the padded length, that of the longest clip.
        length = min(length, round(self.clip.duration_s * CODES_A_SECOND) + 1)
        codes = codes[:length]
        if len(codes) == 0 or codes.min() < 0 or codes.max() >= self.sizes.start_audio:
            raise DataError(
                f"its {name} are empty or not between 0 and {self.sizes.start_audio - 1}. Compute "
                "them with the codec of IndexTTS-2.0."
            )
        return codes.astype(np.int16)

    def _voice(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        values = self._load(name)
        # A batch dimension of 1 is allowed: preprocessing may save what a network returns.
        if values.shape not in (shape, (1, *shape)):
            raise DataError(
                f"its {name} has shape {values.shape}; expected {shape}. Compute it with the base "
                "of this run."
            )
        if not np.isfinite(values).all():
            raise DataError(f"its {name} has NaN or infinite values. Compute it again.")
        return values.reshape(shape).astype(np.float16)

    def _load(self, name: str) -> np.ndarray:
        path = self.clip.arrays.get(name)
        if path is None:
            raise DataError(
                f"its row has no {name}_path. Expected codes, condition and emo_vec (with text or "
                "text_ids), or a pair with target_codes, prompt_condition and prompt_emo_vec."
            )
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{Path(path).name} cannot be read: {error}.") from None


@lru_cache(maxsize=1)
def _networks(
    base: Base, options: Options
) -> tuple[SemanticFeatures, CodecEncoder, Conditioning | None]:
    """Return the networks that compute codes and voices, loaded once per process."""
    if base.is_random:
        codec = make_codec(load_file(base.folder / CODEC_FILE), base.folder / CODEC_FILE)
    else:
        if not options.w2v_bert or not options.codec:
            # A DataError leaves out this clip only; other rows of a manifest may have arrays.
            raise DataError(
                "turning audio into codes needs the w2v-bert-2.0 folder and the semantic codec "
                "file. Set both in the options of IndexTTS-2, or use a manifest with precomputed "
                "arrays."
            )
        codec = load_codec(Path(options.codec))
    semantic = SemanticFeatures(base, options.w2v_bert)
    if options.conditioning == "trained":
        return semantic, codec, None
    with torch.device("meta"):
        conditioning = Conditioning(base.sizes)
    state = {name: value.float() for name, value in base.conditioning_state().items()}
    conditioning.load_state_dict(state, assign=True)
    return semantic, codec, conditioning.eval().requires_grad_(False)
