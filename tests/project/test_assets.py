"""The demo corpus matches its sentences and files, and the scripts that make it behave."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from assets import engines, make_base, make_demo
from assets.engines import Voice
from assets.make_demo import HEADER, SENTENCES, Row, read_sentences

DEMO = Path(make_demo.__file__).parent / "demo"
MAX_BYTES = 6_000_000


def read_rows(split: str) -> list[list[str]]:
    lines = (DEMO / f"{split}.csv").read_text(encoding="utf-8").splitlines()
    return [line.split("|") for line in lines[1:]]


def words_of(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalpha() or letter == " ")


def runs_of(text: str, length: int) -> set[tuple[str, ...]]:
    words = words_of(text).split()
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def all_sentences() -> list[str]:
    files = sorted(SENTENCES.glob("*.txt"))
    return [text for path in files for text in read_sentences(path)]


def test_every_sentence_is_written_once():
    sentences = [words_of(text) for text in all_sentences()]

    assert len(sentences) > 400
    assert len(set(sentences)) == len(sentences)


def test_sentences_hold_nothing_that_would_break_a_row():
    assert not [text for text in all_sentences() if "|" in text or not text.isascii()]


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_csv_holds_the_sentences_of_every_speaker_in_order(split: str):
    expected = [
        (voice.speaker, text)
        for voice in make_demo.DEMO_VOICES
        for text in read_sentences(SENTENCES / f"{voice.speaker}_{split}.txt")
    ]

    assert [(speaker, text) for _, text, speaker in read_rows(split)] == expected


def test_no_eval_sentence_is_trained_on():
    train = {words_of(text) for _, text, _ in read_rows("train")}
    base = {words_of(text) for text in read_sentences(SENTENCES / "base.txt")}

    assert not {words_of(text) for _, text, _ in read_rows("eval")} & (train | base)


def test_no_eval_sentence_borrows_a_phrase_from_what_is_trained_on():
    trained = [text for _, text, _ in read_rows("train")]
    trained += read_sentences(SENTENCES / "base.txt")
    known = set().union(*(runs_of(text, length=5) for text in trained))

    assert not [text for _, text, _ in read_rows("eval") if runs_of(text, length=5) & known]


def test_the_csvs_name_every_clip_and_every_clip_is_named():
    named = [name for split in ("train", "eval") for name, _, _ in read_rows(split)]
    found = [path.relative_to(DEMO).as_posix() for path in DEMO.rglob("*.ogg")]

    assert sorted(named) == sorted(found)


def test_clips_are_mono_24_khz_speech_of_plausible_length():
    facts = [soundfile.info(DEMO / name) for name, _, _ in read_rows("train") + read_rows("eval")]

    assert {(fact.samplerate, fact.channels) for fact in facts} == {(24_000, 1)}
    assert min(fact.duration for fact in facts) > 1.0
    assert max(fact.duration for fact in facts) < 8.0


def test_about_json_states_the_seconds_that_the_files_hold():
    about = json.loads((DEMO / "about.json").read_text(encoding="utf-8"))
    seconds = sum(
        soundfile.info(DEMO / name).duration
        for name, _, speaker in read_rows("train")
        if speaker == "hana"
    )

    assert about["clips"]["train"]["hana"]["clips"] == 176
    assert about["clips"]["train"]["hana"]["seconds"] == pytest.approx(seconds, abs=0.1)


def test_the_demo_stays_small():
    assert sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file()) < MAX_BYTES


def test_no_voice_of_the_base_speaks_in_the_demo():
    demo = {(voice.engine, voice.voice) for voice in make_demo.DEMO_VOICES}
    parts = {
        (voice.engine, name)
        for voice in make_base.BASE_VOICES
        for name, _ in engines.parse_blend(voice.voice)
    }

    assert not demo & parts


def test_different_voices_read_each_base_sentence_and_share_the_work():
    readers = [make_base.readers_of(number) for number in range(80)]
    counts = [sum(voice in group for group in readers) for voice in make_base.BASE_VOICES]

    assert {len(set(group)) for group in readers} == {make_base.READERS_PER_SENTENCE}
    assert counts == [30] * len(make_base.BASE_VOICES)


def test_trimming_keeps_a_margin_around_the_speech():
    wave = np.zeros(1000, dtype=np.float32)
    wave[400:600] = 1.0

    trimmed = engines.trim(wave, sample_rate=1000)

    assert len(trimmed) == 80 + 199 + 80
    assert trimmed[79] == 0.0
    assert trimmed[80] == 1.0


def test_silence_is_left_alone():
    wave = np.zeros(100, dtype=np.float32)

    assert len(engines.even_out(engines.trim(wave, 1000))) == 100


@pytest.mark.parametrize("loudness", [0.001, 0.5])
def test_clips_come_out_equally_loud(loudness: float):
    tone = loudness * np.sin(np.linspace(0, 500, 4000))

    even = engines.even_out(tone)

    assert np.sqrt(np.mean(even**2)) == pytest.approx(engines.TARGET_RMS, rel=1e-3)


def test_a_click_is_not_scaled_beyond_full_scale():
    click = np.zeros(10_000, dtype=np.float32)
    click[5000] = 0.1

    assert np.abs(engines.even_out(click)).max() == pytest.approx(engines.PEAK)


def test_a_blend_names_voices_and_weights():
    assert engines.parse_blend("a:1.6+b:-0.6") == [("a", 1.6), ("b", -0.6)]
    assert engines.parse_blend("a") == [("a", 1.0)]


def test_a_clip_is_written_and_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tone = np.sin(np.linspace(0, 900, 24_000)).astype(np.float32)
    monkeypatch.setitem(engines._ENGINES, "tone", lambda voice, text, seed: (tone, 24_000))

    row = make_demo.speak_clip(tmp_path, "clips/a.ogg", Voice("a", "tone", ""), "Hello.", 1)
    make_demo.write_csv(tmp_path / "train.csv", [row])

    assert row == Row("clips/a.ogg", "Hello.", "a", pytest.approx(1.0, abs=0.01))
    assert soundfile.info(tmp_path / "clips/a.ogg").samplerate == 24_000
    assert (tmp_path / "train.csv").read_text() == f"{HEADER}\nclips/a.ogg|Hello.|a\n"


def test_a_clip_that_is_there_is_kept_so_that_a_corpus_can_be_continued(tmp_path: Path):
    soundfile.write(tmp_path / "a.wav", np.zeros(800), 8_000)

    row = make_demo.speak_clip(tmp_path, "a.wav", Voice("a", "no such engine", ""), "Hello.", 1)

    assert row == Row("a.wav", "Hello.", "a", 0.1)


MEASURED = DEMO.parent / "measured"


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.json")), ids=lambda path: path.stem)
def test_every_measurement_has_a_row_with_the_command_that_makes_it(path: Path):
    lines = (MEASURED.parent / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith(f"| `{path.name}`")]
    [(_, what, command)] = rows
    program = re.search(r"python (?:-m )?([\w./]+)", command)

    assert what.strip()
    assert program is not None
    name = program[1].removesuffix(".py").replace(".", "/")
    project = MEASURED.parent.parent
    assert (project / f"{name}.py").exists() or (project / name / "__main__.py").exists()


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.json")), ids=lambda path: path.stem)
def test_every_measurement_says_how_it_was_made(path: Path):
    found = json.loads(path.read_text(encoding="utf-8"))

    assert "python" in found["command"]
