"""Survey all clips at once: symbols, speakers, durations and the statistics of each speaker."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from trainer.core.errors import DataError
from trainer.core.specs import Corpus, Progress
from trainer.core.types import Clip, Features
from trainer.models._layers.mel import MelSettings
from trainer.models.fastspeech2 import tokens
from trainer.models.fastspeech2.alignment import ctc_aligner, hmm_aligner, neural_aligner
from trainer.models.fastspeech2.checkpoint.weights import FORMAT, read_base, require_same_shape
from trainer.models.fastspeech2.facts import BaseFacts, Facts, Voice
from trainer.models.fastspeech2.network import Sizes, sizes_of
from trainer.models.fastspeech2.options import Options

_REGRESSION_FRAMES = 20_000  # plenty for 81 weights


def survey(
    features: dict[str, Features],
    clips: Sequence[Clip],
    options: Options,
    base: Path | None,
    progress: Progress,
) -> Corpus:
    """Align every clip and compute its training targets.

    The symbols and speakers of a base checkpoint keep their order; new ones are appended.

    Raises:
        DataError: no train clip is usable.
        CheckpointError: the base or the CTC model is damaged or does not match.
    """
    sizes = sizes_of(options.size, options.blocks, options.dropout)
    facts = _known_facts(base, sizes)
    # By id, so that the result does not depend on the order of the list.
    clips = sorted((clip for clip in clips if clip.id in features), key=lambda clip: clip.id)
    progress("Reading text", 0, len(clips))
    spelled = tokens.split_symbols(
        [clip.text for clip in clips], [clip.language for clip in clips], options.tokens
    )
    train = [index for index, clip in enumerate(clips) if clip.split != "val"]
    # Symbols that occur only in validation could not be learned, so they get no row.
    found = {symbol for index in train for symbol in spelled[index]}
    symbols = facts["symbols"] if facts else list(tokens.SPECIALS)
    # Sorted, because the order of a set of strings differs from process to process.
    symbols = symbols + sorted((found | set(tokens.SPECIALS)) - set(symbols))
    known = facts["speakers"] if facts else []
    voices = _extend_voices(known, [clips[index] for index in train], features)
    encoded = {
        clip.id: tokens.encode_symbols(spelling, symbols)
        for clip, spelling in zip(clips, spelled, strict=True)
    }
    unusable = _find_unusable(clips, encoded, features, _states_of(symbols, options), voices)
    fitting = _usable(clips, unusable)
    durations, failed = _align(fitting, encoded, features, symbols, options, progress)
    unusable |= failed
    # A second time, because alignment may have failed for the last train clip.
    kept = _usable(fitting, unusable)
    numbered = {voice["name"]: (voice, number) for number, voice in enumerate(voices)}
    ready = {
        clip.id: _prepare(
            features[clip.id], encoded[clip.id], durations[clip.id], *numbered[clip.speaker]
        )
        for clip in kept
    }
    new_facts = write_facts(options, sizes, symbols, voices)
    clips_ready = [ready[clip.id] for clip in kept]
    # The embeddings of a base were trained with its bins, so other bins would change its voice.
    base_facts = facts or new_facts
    new_facts["pitch_range"] = base_facts.get("pitch_range") or _range(clips_ready, "pitch")
    new_facts["energy_range"] = base_facts.get("energy_range") or _range(clips_ready, "energy")
    new_facts["voicing"] = _fit_voicing([features[clip.id] for clip in kept])
    return Corpus(dict(new_facts), ready, unusable)


def _known_facts(base: Path | None, sizes: Sizes) -> BaseFacts | None:
    if base is None:
        return None
    facts, _ = read_base(base)
    require_same_shape(facts, sizes, base)
    return facts


def _extend_voices(
    known: Sequence[Voice], clips: Sequence[Clip], features: dict[str, Features]
) -> list[Voice]:
    """Measure the speakers of the train clips; other speakers of the base keep their statistics."""
    spoken: dict[str, list[Clip]] = {}
    for clip in clips:
        spoken.setdefault(clip.speaker, []).append(clip)
    voices = {voice["name"]: voice for voice in known}
    for name, own in sorted(spoken.items()):
        f0 = np.concatenate([features[clip.id]["f0"] for clip in own])
        energy = np.concatenate([features[clip.id]["energy"] for clip in own])
        log_f0 = np.log(f0[f0 > 0])
        # A speaker without voiced frames gets a neutral pitch: exp(5.0) is 148 Hz. Lower limits
        # keep divisions by a deviation finite.
        pitch_mean = float(log_f0.mean()) if len(log_f0) else 5.0
        pitch_std = max(float(log_f0.std()), 0.05) if len(log_f0) else 0.2
        energy_std = max(float(energy.std()), 1e-3)
        voices[name] = {
            "name": name, "language": own[0].language, "pitch_mean": pitch_mean,
            "pitch_std": pitch_std, "energy_mean": float(energy.mean()), "energy_std": energy_std,
        }  # fmt: skip
    return list(voices.values())


def _find_unusable(
    clips: Sequence[Clip],
    encoded: dict[str, np.ndarray],
    features: dict[str, Features],
    states_of: np.ndarray,
    voices: Sequence[Voice],
) -> dict[str, str]:
    """Return by clip id why a clip has to be left out."""
    speakers = {voice["name"] for voice in voices}
    reasons = {}
    for clip in clips:
        token = encoded[clip.id]
        frames = len(features[clip.id]["mel"])
        if len(token) == 0:
            reasons[clip.id] = "its text has no speakable symbol that occurs in the train clips"
        elif clip.speaker not in speakers:
            reasons[clip.id] = f"its speaker '{clip.speaker}' has no train clip"
        elif (needed := hmm_aligner.count_frames_needed(token, states_of)) > frames:
            reasons[clip.id] = (
                f"its text of {len(token) - 2} symbols is too long for {frames} frames of audio "
                f"(it needs {needed}); the text and the audio probably do not belong together"
            )
    return reasons


def _usable(clips: Sequence[Clip], unusable: dict[str, str]) -> list[Clip]:
    """Return the clips that are left.

    Raises:
        DataError: none of them is in the train split.
    """
    left = [clip for clip in clips if clip.id not in unusable]
    if all(clip.split == "val" for clip in left):
        reasons = "; ".join(sorted(set(unusable.values()))[:3]) or "the train split is empty"
        raise DataError(f"No train clip can be used: {reasons}. See the ledger on the Data tab.")
    return left


def _states_of(symbols: Sequence[str], options: Options) -> np.ndarray:
    """Return the number of states of each symbol (V,); only the monophone aligner has several."""
    several = hmm_aligner.SOUND_STATES if options.aligner == "monophone" else 1
    return np.array([several if tokens.is_sound(symbol) else 1 for symbol in symbols])


def _align(
    clips: Sequence[Clip],
    encoded: dict[str, np.ndarray],
    features: dict[str, Features],
    symbols: Sequence[str],
    options: Options,
    progress: Progress,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return by clip id the durations (T_text,), and why other clips cannot be aligned."""
    mels = [features[clip.id]["mel"] for clip in clips]
    numbers = [encoded[clip.id] for clip in clips]

    def aligning(done: int, total: int) -> None:
        progress("Aligning", done, total)

    if options.aligner == "ctc":
        recogniser = ctc_aligner.load_recogniser(Path(options.ctc_model))
        trimmed = options.trim_silence
        return ctc_aligner.align_clips(
            clips, numbers, mels, symbols, recogniser, is_trimmed=trimmed, progress=aligning
        )
    # These numbers only group clips; they need not be those of the voices.
    names = sorted({clip.speaker for clip in clips})
    numbers_of = {name: number for number, name in enumerate(names)}
    groups = [numbers_of[clip.speaker] for clip in clips]
    if options.aligner == "neural":
        steps = options.aligner_steps
        found = neural_aligner.align_clips(mels, numbers, groups, progress, steps=steps)
    else:
        states_of = _states_of(symbols, options)
        found = hmm_aligner.align_clips(mels, numbers, states_of, groups, aligning)
    return {clip.id: durations for clip, durations in zip(clips, found, strict=True)}, {}


def _prepare(
    raw: Features, token: np.ndarray, durations: np.ndarray, voice: Voice, number: int
) -> Features:
    """Average pitch and energy over each token, in units of the speaker's standard deviation."""
    log_f0 = interpolate_log_f0(raw["f0"], voice["pitch_mean"])
    pitch = (log_f0 - voice["pitch_mean"]) / voice["pitch_std"]
    energy = (raw["energy"] - voice["energy_mean"]) / voice["energy_std"]
    starts = np.cumsum(durations) - durations
    return {
        "mel": raw["mel"],
        "tokens": token,
        "durations": durations,
        # Outliers, such as errors of the pitch tracker, would dominate the squared losses. The
        # limits, in standard deviations, were chosen by hand.
        "pitch": _average(np.clip(pitch, -4, 4), starts, durations),
        "energy": _average(np.clip(energy, -4, 6), starts, durations),
        "speaker": np.array(number, np.int32),
    }


def interpolate_log_f0(f0: np.ndarray, fallback: float) -> np.ndarray:
    """Return log F0 (T_mel,) of f0 (T_mel,) Hz, linearly interpolated over unvoiced frames."""
    voiced = np.flatnonzero(f0 > 0)
    if len(voiced) == 0:
        return np.full(len(f0), fallback)
    return np.interp(np.arange(len(f0)), voiced, np.log(f0[voiced]))


def _average(values: np.ndarray, starts: np.ndarray, durations: np.ndarray) -> np.ndarray:
    """Average values (T_mel,) over each token's frames, (T_text,); durations must be positive."""
    return (np.add.reduceat(values, starts) / durations).astype(np.float32)


def write_facts(
    options: Options, sizes: Sizes, symbols: list[str], voices: Sequence[Voice]
) -> Facts:
    """Return the facts that do not depend on statistics of the clips."""
    return {
        "format": FORMAT,
        "family": "fastspeech2",
        "size": options.size,
        "sizes": sizes.to_json(),
        "tokens": options.tokens,
        "symbols": symbols,
        "speakers": list(voices),
        "mel": asdict(MelSettings()),
        "sample_rate": MelSettings().sample_rate,
        "vocoder": options.vocoder,
        "hifigan": options.hifigan,
    }


def _range(ready: Sequence[Features], name: str) -> list[float]:
    """Return the range that a quantized embedding covers."""
    values = np.concatenate([clip[name] for clip in ready])
    # 0.01 keeps the range from being empty where all values are equal.
    return [round(float(values.min()), 4), round(float(values.max()) + 0.01, 4)]


def _fit_voicing(clips: Sequence[Features]) -> list[float]:
    """Fit a linear classifier of mel frames, voiced (1) or unvoiced (-1): M weights and a constant.

    The pulse vocoder applies it to the predicted mel, so the network need not predict voicing. It
    is fitted by ridge regression on evenly spaced frames.
    """
    mels = np.concatenate([clip["mel"] for clip in clips])
    voiced = np.concatenate([clip["f0"] for clip in clips]) > 0
    step = max(1, len(mels) // _REGRESSION_FRAMES)
    inputs = np.concatenate([mels, np.ones((len(mels), 1))], axis=1)[::step].astype(np.float64)
    target = np.where(voiced, 1.0, -1.0)[::step]
    # 1e-3 per frame keeps the system solvable if mel bands are constant or collinear.
    ridge = inputs.T @ inputs + len(inputs) * 1e-3 * np.eye(inputs.shape[1])
    return [round(float(weight), 6) for weight in np.linalg.solve(ridge, inputs.T @ target)]
