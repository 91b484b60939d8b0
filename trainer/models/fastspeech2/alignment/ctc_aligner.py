"""Estimate durations with the user's own speech recogniser, by torchaudio's CTC forced alignment.

The recogniser is a TorchScript file, because that contains its architecture and runs no Python. A
JSON file of the same name beside it lists its labels. CTC only marks where each letter peaks, so
the frames between peaks are divided here: silence goes to spaces, punctuation and sentence marks,
the rest to the letters on both sides.
"""

import json
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchaudio.functional import forced_align

from trainer.core.errors import CheckpointError, DataError
from trainer.core.types import Clip
from trainer.data.audio.audio_io import load_audio, resample, trim_silence
from trainer.models._layers.mel import MelSettings
from trainer.models.fastspeech2 import tokens

_SAMPLE_RATES = range(4000, 192001)  # Hz; wide limits, only to catch kHz and other mistakes
_RANGE = 6.0
"""Largest loudness range of a clip, in natural log units (52 dB); anything quieter is silence.

Chosen by hand: without a limit, digital silence would stretch the range.
"""

_TIE_BREAK = 1e-6  # far below differences between real scores, far above float64's resolution
_QUIET_SHARE = 0.3
"""Frames below this share of a clip's loudness range are silence; chosen by hand."""


@dataclass(frozen=True)
class Recogniser:
    """A scripted network (1, T_wav) -> (1, frames, labels), and the meaning of its outputs."""

    network: torch.jit.ScriptModule
    labels: tuple[str, ...]
    sample_rate: int
    blank: int

    def __call__(self, wave: np.ndarray) -> Tensor:
        """Return the log-probabilities (1, frames, labels) of audio (T_wav,) at its sample rate.

        Raises:
            RuntimeError: the network failed, for example because the audio is too short.
        """
        with torch.no_grad():
            output = self.network(torch.from_numpy(wave)[None])
        scores = output[0] if isinstance(output, tuple) else output
        # The network may return logits or log-probabilities; log_softmax leaves the latter as is.
        return scores.double().log_softmax(dim=-1)


def load_recogniser(path: Path) -> Recogniser:
    """Load a TorchScript file and its labels, and test it on one second of noise.

    The labels are in a JSON file with the same stem beside it:
    {"labels": ["-", "|", "e", ...], "sample_rate": 16000, "blank": 0}. `labels` names the outputs
    in order; the other two are optional. A label " " or "|" is the space between words.

    Raises:
        CheckpointError: a file is missing or invalid.
    """
    about = _read_labels(path)
    try:
        with warnings.catch_warnings():
            # torch recommends torch.export instead, but we need a file that accepts any length.
            warnings.simplefilter("ignore", DeprecationWarning)
            network = torch.jit.load(str(path), map_location="cpu").eval()
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a TorchScript file ({_cause(error)}). Save the "
            "recogniser with torch.jit.script(model).save(...), or copy the file again."
        ) from None
    recogniser = Recogniser(network, *about)
    _try(recogniser, path)
    return recogniser


def align_clips(
    clips: Sequence[Clip],
    encoded: Sequence[np.ndarray],
    mels: Sequence[np.ndarray],
    symbols: Sequence[str],
    recogniser: Recogniser,
    *,
    is_trimmed: bool,
    progress: Callable[[int, int], None],
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return by clip id the frames of each token (T_text,) int32, and the reasons of failures.

    encoded: (T_text,) symbol numbers. mels: (T_mel, M) natural log, with at least as many frames as
    tokens. symbols: the symbol of each number. is_trimmed: True if the mels are of trimmed audio.
    """
    numbers = np.array([find_label(symbol, recogniser) for symbol in symbols])
    is_sound = np.array([tokens.is_sound(symbol) for symbol in symbols])
    durations: dict[str, np.ndarray] = {}
    failed: dict[str, str] = {}
    for count, (clip, token, mel) in enumerate(zip(clips, encoded, mels, strict=True)):
        progress(count, len(clips))
        try:
            wave = _load_wave(clip, recogniser.sample_rate, is_trimmed)
            spans = _find_spans(recogniser, wave, numbers[token]) * len(mel)
        except DataError as error:
            failed[clip.id] = str(error)
            continue
        durations[clip.id] = share_frames(spans, is_sound[token], mel)
    progress(len(clips), len(clips))
    return durations, failed


def find_label(symbol: str, recogniser: Recogniser) -> int:
    """Return the index of a symbol's label, or -1.

    A symbol also matches a label in another case or without its accent.
    """
    if symbol in tokens.SPECIALS:
        return -1
    plain = unicodedata.normalize("NFD", symbol)[:1]
    spellings = [symbol, symbol.lower(), symbol.upper(), plain, plain.lower(), plain.upper()]
    for spelling in [*spellings, "|"] if symbol == " " else spellings:
        if spelling in recogniser.labels:
            number = recogniser.labels.index(spelling)
            if number != recogniser.blank:
                return number
    return -1


def share_frames(spans: np.ndarray, is_sound: np.ndarray, mel: np.ndarray) -> np.ndarray:
    """Return the frames of each token (T_text,) int32, at least one, from the recognised spans.

    spans: (T_text, 2) start and end in frames, NaN where nothing was recognised. is_sound:
    (T_text,) whether a token is heard. mel: (T_mel, M), with at least as many frames as tokens.
    """
    num_frames, num_tokens = len(mel), len(spans)
    quiet = _find_quiet(mel)
    # Only sounds anchor boundaries: a space peaks anywhere within its pause.
    anchors = np.flatnonzero(is_sound & ~np.isnan(spans[:, 0]))
    edges = np.zeros(num_tokens + 1)
    for left, right in zip([-1, *anchors], [*anchors, num_tokens], strict=True):
        start = 0.0 if left < 0 else spans[left, 1]
        stop = float(num_frames) if right == num_tokens else spans[right, 0]
        between = is_sound[left + 1 : right]
        # A sound without a label could be anywhere in between, even in what looks like silence, so
        # the tokens between the anchors get equal shares.
        if not between.any():
            is_inside = bool(left >= 0), bool(right < num_tokens)
            start, stop = _find_pause(quiet, start, stop, is_inside, has_marks=len(between) > 0)
        edges[left + 1 : right + 1] = np.linspace(start, stop, right - left)
    edges[-1] = num_frames
    return _round_apart(edges)


def _find_quiet(mel: np.ndarray) -> np.ndarray:
    """Return a bool mask (T_mel,) that is True where a mel (T_mel, M) is silent."""
    loudness = np.log(np.exp(mel).sum(axis=1))
    floor = max(loudness.min(), loudness.max() - _RANGE)
    quiet = loudness < floor + _QUIET_SHARE * (loudness.max() - floor)
    # A frame's window covers its neighbours, so sound appears to begin one frame early and to end
    # one frame late.
    padded = np.pad(quiet, 1)
    return padded[:-2] | quiet | padded[2:]


def _find_pause(
    quiet: np.ndarray, start: float, stop: float, is_inside: tuple[bool, bool], *, has_marks: bool
) -> tuple[float, float]:
    """Return start and end of the pause within a stretch; the sounds on both sides get the rest.

    quiet: (T_mel,). start, stop: the stretch, in frames. is_inside: whether there is a sound on the
    left and on the right. Without silence, or without a mark to assign it to, the sounds meet in
    the middle or extend to the end of the clip.
    """
    first = round(start)
    silent = first + np.flatnonzero(quiet[first : round(stop)])
    if has_marks and len(silent):
        end = float(silent[-1]) + 1
        return (float(silent[0]) if is_inside[0] else start), (end if is_inside[1] else stop)
    point = (start + stop) / 2 if all(is_inside) else (stop if is_inside[0] else start)
    return point, point


def _round_apart(edges: np.ndarray) -> np.ndarray:
    """Round increasing edges (T_text + 1,) to frames, at least one apart; return durations."""
    # Rounding after subtracting 0, 1, 2, ... turns "at least one apart" into "not decreasing".
    steps = np.arange(len(edges))
    whole = np.round(edges).astype(np.int64) - steps
    whole = np.minimum(np.maximum.accumulate(whole), whole[-1]) + steps
    return np.diff(whole).astype(np.int32)


def _find_spans(recogniser: Recogniser, wave: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return start and end of each token as shares of the clip, (T_text, 2), NaN without a label.

    wave: (T_wav,). numbers: (T_text,) label of each token, -1 for none.
    """
    labelled = np.flatnonzero(numbers >= 0)
    if not len(labelled):
        raise DataError("its text has no symbol that the CTC model has a label for")
    wanted = numbers[labelled]
    try:
        scores = recogniser(wave)
    except RuntimeError as error:
        raise DataError(f"the CTC model failed on its audio: {_cause(error)}") from None
    if not torch.isfinite(scores).all():
        raise DataError("the CTC model's output for its audio has NaN or infinite values")
    num_frames = scores.shape[1]
    # CTC needs a blank between two equal labels.
    needed = len(wanted) + int((np.diff(wanted) == 0).sum())
    if needed > num_frames:
        raise DataError(
            f"its text needs at least {needed} frames of the CTC model, but its audio has only "
            f"{num_frames}; the text and the audio probably do not belong together"
        )
    # If the best two of the three ways into a cell score exactly the same, forced_align takes the
    # worst one (pytorch/audio issue 4221). Noise breaks such ties.
    noise = np.random.default_rng(0).uniform(0, _TIE_BREAK, tuple(scores.shape))
    path, _ = forced_align(
        scores + torch.from_numpy(noise), torch.from_numpy(wanted)[None], blank=recogniser.blank
    )
    heard = np.append(path[0].numpy(), recogniser.blank)
    changes = np.flatnonzero(np.diff(heard, prepend=recogniser.blank))
    spans = np.full((len(numbers), 2), np.nan)
    starts = changes[heard[changes] != recogniser.blank]
    ends = np.array([changes[changes > start][0] for start in starts])
    spans[labelled] = np.stack([starts, ends], axis=1) / num_frames
    return spans


def _load_wave(clip: Clip, sample_rate: int, is_trimmed: bool) -> np.ndarray:
    """Load the audio (T_wav,) that the clip's mel was computed from, at another sample rate."""
    if not is_trimmed:
        return load_audio(clip.audio_path, sample_rate)
    # Trimmed at the mel's rate, or it could be cut at other samples than the mel.
    rate = MelSettings().sample_rate
    return resample(trim_silence(load_audio(clip.audio_path, rate), rate), rate, sample_rate)


def _read_labels(path: Path) -> tuple[tuple[str, ...], int, int]:
    """Return the labels, sample rate and blank from the JSON file beside a recogniser."""
    if not path.is_file():
        raise CheckpointError(
            f"The CTC model {path.absolute()} does not exist. Enter the full path of a TorchScript "
            "file, or choose the monophone aligner, which needs no model."
        )
    about = path.with_suffix(".json")
    form = 'Expected {"labels": ["-", "|", "a", ...], "sample_rate": 16000, "blank": 0}.'
    try:
        values: object = json.loads(about.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{about} is missing; it must list the labels of {path.name}. {form}"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{about} cannot be read as JSON: {error}. {form}") from None
    values = values if isinstance(values, dict) else {}
    labels, rate = values.get("labels"), values.get("sample_rate", 16000)
    blank = values.get("blank", 0)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise CheckpointError(f"{about} has no list of labels. {form}")
    if len(set(labels)) < max(len(labels), 2):
        raise CheckpointError(f"{about} repeats a label or has fewer than two labels. {form}")
    # Not isinstance: true is an int in Python, but not a sample rate.
    if type(rate) is not int or rate not in _SAMPLE_RATES:
        raise CheckpointError(f"The sample rate in {about} is {rate!r}; expected Hz. {form}")
    if type(blank) is not int or not 0 <= blank < len(labels):
        raise CheckpointError(
            f"The blank in {about} is {blank!r}; expected the index of a label, from 0 to "
            f"{len(labels) - 1}. {form}"
        )
    return tuple(labels), rate, blank


def _try(recogniser: Recogniser, path: Path) -> None:
    """Reject a recogniser that cannot map one second of noise to scores for its labels."""
    noise = np.random.default_rng(0).normal(0, 0.1, recogniser.sample_rate).astype(np.float32)
    expected = "expected a model that maps audio (1, samples) to scores (1, frames, labels)"
    try:
        shape = tuple(recogniser(noise).shape)
    except (RuntimeError, AttributeError, TypeError, IndexError) as error:
        raise CheckpointError(
            f"{path} failed on one second of noise ({_cause(error)}); {expected}. Wrap the model "
            "accordingly and save it again."
        ) from None
    if len(shape) != 3 or shape[0] != 1 or shape[1] < 1 or shape[2] != len(recogniser.labels):
        raise CheckpointError(
            f"{path} returned scores of shape {shape} for one second of noise; {expected}, here "
            f"with {len(recogniser.labels)} labels. Correct {path.with_suffix('.json').name} or "
            "the model."
        )


def _cause(error: Exception) -> str:
    """Return the last line of an error message, where TorchScript states the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
