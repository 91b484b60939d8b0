"""Find suspicious clips that can still be used, and suggest what to do; none is dropped."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from trainer.core.types import Clip
from trainer.data.audio.quality import Quality

KINDS = {
    "clipped": ("Clipped", "Record it at a lower level, or exclude it."),
    "silent": ("Silent", "Training skips it. Record it again or remove the row."),
    "quiet": ("Very quiet", "Record it at a higher level, or exclude it."),
    "mostly_silent": ("Mostly silent", "Trim the silence, or exclude it."),
    "noisy_tail": ("Noise after the last word", "Trim the end, or exclude it."),
    "cut_off": ("Ends during speech", "The last sound may be missing. Cut the clip again."),
    "pace": (
        "Unusual speaking rate",
        "The text may not match the audio. Read it while you listen.",
    ),
    "repeated": ("Repeated text", "Fine for a few; many make the model memorize the sentence."),
    "leaked_text": ("Text in train and eval", "Validation will look better than it is."),
}
"""Kinds of findings: heading and suggested fix."""

_SILENT_DB = -70.0
"""dB of full scale; audio_io.py refuses clips below it."""
# Chosen by hand, to report few clips of a good recording: a rate is unusual if it differs from
# the median by 4 robust standard deviations and by a factor of 1.5.
_FEWEST_FOR_PACE = 20  # The median of fewer clips says little.
_FAR = 4.0
_FACTOR = 1.5


@dataclass(frozen=True)
class Finding:
    """One clip that a person should check."""

    kind: str
    clip: Clip
    words: str


def find_outliers(clips: Sequence[Clip], qualities: Mapping[str, Quality]) -> list[Finding]:
    """Return the findings about clips, from their audio (quality by path) and their texts."""
    found = [
        Finding(kind, clip, words)
        for clip in clips
        if (quality := qualities.get(clip.audio_path)) is not None
        for kind, words in _audio_findings(quality)
    ]
    return [*found, *_odd_paces(clips), *_repeated(clips), *_leaked_texts(clips)]


def leak_notes(clips: Sequence[Clip]) -> list[str]:
    """Return warnings about recordings or speakers shared by train and eval; else empty."""
    parts: dict[str, dict[str, set[str]]] = {
        name: {"train": set(), "val": set()} for name in ("recording", "speaker")
    }
    for clip in clips:
        for name, sides in parts.items():
            sides[clip.split].add(getattr(clip, name))
    notes = []
    shared = sorted(parts["recording"]["train"] & parts["recording"]["val"] - {""})
    # With one or two names in all, the names of the files do not tell recordings apart.
    is_told = len(parts["recording"]["train"] | parts["recording"]["val"]) > 2
    if shared and is_told:
        notes.append(
            f"{len(shared)} recordings are in both train and eval ({_some(shared)}): validation "
            "may look better than on a new recording. Leave the eval CSV empty to hold out whole "
            "recordings."
        )
    strangers = sorted(parts["speaker"]["val"] - parts["speaker"]["train"])
    if strangers:
        notes.append(f"Speakers in eval that are not in train: {_some(strangers)}.")
    return notes


def letters_per_second(clip: Clip) -> float:
    """Return a clip's speaking rate; punctuation and spaces do not count."""
    return sum(letter.isalnum() for letter in clip.text) / max(clip.duration_s, 1e-3)


def _audio_findings(quality: Quality) -> list[tuple[str, str]]:
    """Return the kinds and descriptions of audio problems; thresholds are chosen by hand."""
    found = []
    if quality.clipped_s > 0.002:
        found.append(("clipped", f"{1000 * quality.clipped_s:.0f} ms are clipped at full scale"))
    if quality.level_db < _SILENT_DB:
        # Alone, because other findings mean nothing for a clip without sound.
        return [("silent", "it has no audible sound")]
    if quality.level_db < -42:
        found.append(("quiet", f"its loud parts are {-quality.level_db:.0f} dB below full scale"))
    if quality.quiet_share > 0.6:
        found.append(("mostly_silent", f"{100 * quality.quiet_share:.0f} % of it is silence"))
    if quality.tail_s >= 0.3 and quality.tail_db > -38:
        words = (
            f"{quality.tail_s:.1f} s at the end, only {-quality.tail_db:.0f} dB below the speech"
        )
        found.append(("noisy_tail", words))
    if quality.ends_loud:
        found.append(("cut_off", "its last 20 ms are as loud as speech"))
    return found


def _odd_paces(clips: Sequence[Clip]) -> list[Finding]:
    """Find clips whose speaking rate is far from the median of their language."""
    by_language: dict[str, list[tuple[Clip, float]]] = defaultdict(list)
    for clip in clips:
        by_language[clip.language].append((clip, letters_per_second(clip)))
    found = []
    for rated in by_language.values():
        if len(rated) < _FEWEST_FOR_PACE:
            continue
        usual = median(rate for _, rate in rated)
        # 1.4826 times the median absolute deviation estimates a normal standard deviation.
        spread = 1.4826 * median(abs(rate - usual) for _, rate in rated)
        for clip, rate in rated:
            is_far = abs(rate - usual) > _FAR * spread
            ratio = rate / max(usual, 1e-9)
            if is_far and not 1 / _FACTOR < ratio < _FACTOR:
                words = f"{rate:.1f} letters per second; the median is {usual:.1f}"
                found.append(Finding("pace", clip, words))
    return found


def _repeated(clips: Sequence[Clip]) -> list[Finding]:
    def words(clip: Clip, first: Clip) -> str:
        return f"same as line {first.line} of {first.source}"

    # By speaker, because the same sentence in two voices is useful.
    return _alike(
        clips, "repeated", lambda clip: (_plain(clip.text), clip.speaker, clip.split), words
    )


def _leaked_texts(clips: Sequence[Clip]) -> list[Finding]:
    """Find train clips whose text also occurs in eval."""
    held_out = {_plain(clip.text): clip for clip in clips if clip.split == "val"}
    return [
        Finding("leaked_text", clip, f"same as eval line {other.line} of {other.source}")
        for clip in clips
        if clip.split == "train" and (other := held_out.get(_plain(clip.text))) is not None
    ]


def _alike(
    clips: Sequence[Clip],
    kind: str,
    key: Callable[[Clip], object],
    words: Callable[[Clip, Clip], str],
) -> list[Finding]:
    first_of: dict[object, Clip] = {}
    found = []
    for clip in clips:
        first = first_of.setdefault(key(clip), clip)
        if first is not clip:
            found.append(Finding(kind, clip, words(clip, first)))
    return found


def _plain(text: str) -> str:
    # Case and punctuation hardly change what is spoken.
    return "".join(letter for letter in text.lower() if letter.isalnum())


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
