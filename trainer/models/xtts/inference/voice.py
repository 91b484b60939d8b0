"""The speakers of a model and the networks that turn its latents into audio; none is trained."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer.core.errors import DataError
from trainer.data.audio.audio_io import load_audio
from trainer.models._weights import save_tensors
from trainer.models.xtts.checkpoint.base_folder import Base
from trainer.models.xtts.facts import Speaker
from trainer.models.xtts.inference.generation import Sampling
from trainer.models.xtts.inference.streaming import decode_pieces
from trainer.models.xtts.network.gpt import XttsGpt
from trainer.models.xtts.network.mel import conditioning_mel
from trainer.models.xtts.network.sizes import SAMPLE_RATE, SPEAKER_RATE
from trainer.models.xtts.network.speaker_encoder import SpeakerEncoder, load_speaker_encoder
from trainer.models.xtts.network.vocoder import XttsVocoder, load_vocoder

VOICES_FILE = "voices.safetensors"
_SHORTEST_CHUNK_S = 0.33  # as in coqui-tts


@dataclass(frozen=True)
class Reference:
    """A speaker's reference: audio (T_wav,) at 22,050 Hz, and the speaker embedding (S,)."""

    wave: Tensor
    embedding: Tensor


class Voice:
    """The networks that are not trained and the speakers' references, loaded on first use."""

    def __init__(self, base: Base, speakers: Sequence[Speaker], kept: Path | None) -> None:
        self.base = base
        self.speakers = {speaker["name"]: speaker for speaker in speakers}
        # A checkpoint speaks without the recordings (docs/decisions/0052).
        self._references = _read_voices(kept, list(self.speakers)) if kept else {}
        self._vocoder: XttsVocoder | None = None
        self._speaker_encoder: SpeakerEncoder | None = None

    def reference(self, name: str) -> Reference:
        """Return a speaker's reference, from the checkpoint or from the recordings.

        Raises:
            DataError: the recordings no longer exist.
        """
        if name not in self._references:
            self._references[name] = self._read_reference(self.speakers[name]["references"])
        return self._references[name]

    def can_speak(self, name: str) -> bool:
        """Return whether a speaker's reference or recordings exist."""
        try:
            self.reference(name)
        except DataError:
            return False
        return True

    def latents(self, model: XttsGpt, name: str) -> Tensor:
        """Return the conditioning latents (1, 32, D) of a speaker: the mean over chunks.

        As in coqui-tts's inference, the reference is cut to `gpt_cond_len` seconds and split into
        chunks of `gpt_cond_chunk_len` seconds; chunks shorter than 0.33 s are left out.
        """
        settings = self.base.config
        longest = int(settings.get("gpt_cond_len", 30) * SAMPLE_RATE)
        size = int(settings.get("gpt_cond_chunk_len", 4) * SAMPLE_RATE)
        device = next(model.parameters()).device
        wave = self.reference(name).wave[:longest].to(device)
        chunks = [wave[start : start + size] for start in range(0, len(wave), size)]
        whole = [chunk for chunk in chunks if len(chunk) >= _SHORTEST_CHUNK_S * SAMPLE_RATE]
        mel_stats = self.base.mel_stats().to(device)
        found = [model.condition(conditioning_mel(chunk[None], mel_stats)) for chunk in whole]
        return torch.stack(found).mean(dim=0)

    def decode(self, latents: Tensor, name: str) -> np.ndarray:
        """Turn latents (1, T, D) into audio (T_wav,) float32 in a speaker's voice."""
        embedding = self.reference(name).embedding.to(latents.device)
        wave = self.vocoder(latents.device)(latents.float(), embedding[None, :, None])
        return wave[0].cpu().numpy()

    def decode_pieces(
        self, latents: Iterable[Tensor], name: str, device: torch.device
    ) -> Iterator[np.ndarray]:
        """Yield pieces of audio (T_wav,) float32 while latents (D,) are sampled.

        Joined, the pieces are what `decode` returns for all latents.
        """
        embedding = self.reference(name).embedding.to(device)[None, :, None]
        # A generator: each latent is passed on as soon as it is sampled.
        heard = (latent.float() for latent in latents)
        sizes = self.base.sizes.vocoder
        for wave in decode_pieces(heard, self.vocoder(device), sizes, embedding):
            yield wave.cpu().numpy()

    def vocoder(self, device: torch.device) -> XttsVocoder:
        """Return the vocoder on a device."""
        if self._vocoder is None:
            self._vocoder = load_vocoder(self.base.voice_state(), self.base.sizes.vocoder)
        return self._vocoder.to(device)

    def save(self, path: Path) -> None:
        """Write the speakers' references, so that the checkpoint does not need the recordings.

        A speaker whose recordings no longer exist is left out, because a missing recording must not
        prevent weights from being saved.
        """
        tensors, names = {}, [name for name in self.speakers if self.can_speak(name)]
        for number, name in enumerate(names):
            reference = self.reference(name)
            tensors[f"{number}.wave"] = reference.wave.half()  # half the size, and precise enough
            tensors[f"{number}.embedding"] = reference.embedding
        # Tensors are numbered, because the name of a speaker may be any text.
        save_tensors(path, tensors, {str(number): name for number, name in enumerate(names)})

    @torch.no_grad()
    def _read_reference(self, paths: Sequence[str]) -> Reference:
        missing = [path for path in paths if not Path(path).is_file()]
        if missing:
            raise DataError(
                f"The reference recording {missing[0]} no longer exists, but the voice needs it. "
                "Put the recordings back where they were."
            )
        if self._speaker_encoder is None:
            state, sizes = self.base.voice_state(), self.base.sizes.speaker
            self._speaker_encoder = load_speaker_encoder(state, sizes)
        waves = [torch.from_numpy(load_audio(path, SAMPLE_RATE)) for path in paths]
        # The speaker encoder was trained at another rate.
        slow = [torch.from_numpy(load_audio(path, SPEAKER_RATE)) for path in paths]
        embeddings = [self._speaker_encoder(wave[None])[0] for wave in slow]
        # Rounded to half precision like in `save`, so that saving does not change the voice.
        return Reference(torch.cat(waves).half().float(), torch.stack(embeddings).mean(dim=0))


class SpeakingGpt(XttsGpt):
    """The GPT with its voice and sampling settings, which are not part of its weights."""

    voice: Voice
    sampling: Sampling


def own_model(model: nn.Module) -> SpeakingGpt:
    """Return the model as this family's class.

    Raises:
        TypeError: it belongs to another family.
    """
    if not isinstance(model, SpeakingGpt):
        raise TypeError(f"expected SpeakingGpt, not {type(model).__name__}")
    return model


def _read_voices(path: Path, names: Sequence[str]) -> dict[str, Reference]:
    """Read the references of the named speakers that the file contains."""
    from safetensors import safe_open

    if not path.is_file():
        return {}
    with safe_open(path, "pt") as file:
        numbers = {name: number for number, name in (file.metadata() or {}).items()}
    tensors = load_file(path)
    return {
        name: Reference(
            tensors[f"{numbers[name]}.wave"].float(), tensors[f"{numbers[name]}.embedding"]
        )
        for name in names
        if name in numbers
    }
