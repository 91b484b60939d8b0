"""Features are computed once, found again, and lost to nothing: damage, death or interruption."""

import os
import signal
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.clips import write_tone
from trainer.core.errors import DataError
from trainer.core.specs import Corpus
from trainer.core.types import Clip, Features
from trainer.data.audio.audio_io import load_audio
from trainer.data.features import cache as cache_module
from trainer.data.features.array_file import DamagedFeatures
from trainer.data.features.cache import FeatureCache, content_hash, default_cache_folder


@dataclass(frozen=True)
class LoudnessFeaturizer:
    """Measures a clip; writes a line per call to `diary`, and dies or refuses on certain texts."""

    diary: Path
    fingerprint: str = "loudness 1"

    def __call__(self, clip: Clip) -> Features:
        with self.diary.open("a") as file:
            file.write(f"{clip.id} {os.getpid()} {os.environ.get('OMP_NUM_THREADS')}\n")
        if clip.text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if clip.text == "refuse":
            raise DataError("This clip is refused.")
        wave = load_audio(clip.audio_path, 8000)
        return {"wave": wave, "text_length": np.array(len(clip.text)), "none": np.zeros((0, 3))}

    def calls(self) -> list[list[str]]:
        """Return the words of every line of the diary."""
        return [line.split() for line in self.diary.read_text().splitlines()]


def make_clips(folder: Path, count: int) -> list[Clip]:
    clips = []
    for number in range(count):
        path = write_tone(folder / f"{number:03d}.wav", 0.2 + 0.001 * number, 8000)
        clips.append(
            Clip(f"c{number:03d}", str(path), f"Text {number}", "ann", "en", 0.2, 8000, "train",
                 "t.csv", number + 1)
        )  # fmt: skip
    return clips


def say_nothing(phase: str, done: int, total: int) -> None:
    """Take progress and tell nobody."""


@pytest.fixture
def featurizer(tmp_path: Path) -> LoudnessFeaturizer:
    diary = tmp_path / "diary.txt"
    diary.touch()
    return LoudnessFeaturizer(diary)


@pytest.fixture
def collect(tmp_path: Path) -> Callable:
    cache = FeatureCache(tmp_path / "cache")

    def collect_clips(clips: list[Clip], featurizer: LoudnessFeaturizer, workers: int = 0) -> tuple:
        return cache.collect(clips, featurizer, workers=workers, progress=say_nothing)

    return collect_clips


def test_features_come_back_equal_and_are_computed_once(
    tmp_path: Path, featurizer: LoudnessFeaturizer, collect: Callable
) -> None:
    clips = make_clips(tmp_path / "wavs", 3)

    first, unusable = collect(clips, featurizer)
    second, _ = collect(clips, featurizer)

    assert (list(first), unusable) == (["c000", "c001", "c002"], {})
    assert len(featurizer.calls()) == 3
    for clip_id, features in first.items():
        assert list(features) == list(second[clip_id])
        for name, array in features.items():
            np.testing.assert_array_equal(array, second[clip_id][name])
            assert array.dtype == second[clip_id][name].dtype
            assert array.shape == second[clip_id][name].shape
            assert not second[clip_id][name].flags.writeable


@pytest.mark.parametrize("field", ["text", "speaker", "language"])
def test_a_clip_that_changes_is_computed_again(
    tmp_path: Path, featurizer: LoudnessFeaturizer, collect: Callable, field: str
) -> None:
    clip = make_clips(tmp_path / "wavs", 1)[0]
    collect([clip], featurizer)

    collect([replace(clip, **{field: "changed"})], featurizer)

    assert len(featurizer.calls()) == 2


def test_changed_audio_or_fingerprint_is_computed_again_but_a_moved_file_is_not(
    tmp_path: Path, featurizer: LoudnessFeaturizer, collect: Callable
) -> None:
    clip = make_clips(tmp_path / "wavs", 1)[0]
    collect([clip], featurizer)
    moved = Path(clip.audio_path).rename(tmp_path / "moved.wav")
    clip = replace(clip, audio_path=str(moved))

    collect([clip], featurizer)
    assert len(featurizer.calls()) == 1
    write_tone(moved, 0.5, 8000)
    collect([clip], featurizer)
    collect([clip], replace(featurizer, fingerprint="loudness 2"))
    assert len(featurizer.calls()) == 3


def test_refused_and_missing_clips_are_named_and_the_others_stay(
    tmp_path: Path, featurizer: LoudnessFeaturizer, collect: Callable
) -> None:
    clips = make_clips(tmp_path / "wavs", 3)
    clips[1] = replace(clips[1], text="refuse")
    Path(clips[2].audio_path).unlink()

    features, unusable = collect(clips, featurizer)

    assert list(features) == ["c000"]
    assert unusable["c001"] == "This clip is refused."
    assert "002.wav cannot be read" in unusable["c002"]


def replace_file(path: Path, content: bytes) -> None:
    """Put other content in the place of a file; who has mapped the old one keeps it."""
    path.with_suffix(".other").write_bytes(content)
    path.with_suffix(".other").replace(path)


def damaged(content: bytes, damage: str, at: int) -> bytes:
    """Return the bytes of a file after one of several accidents."""
    flipped = bytearray(content)
    flipped[at] ^= 1
    choices = {"cut": content[:-70], "flip": flipped, "zero": b"", "replace": b"PK" + bytes(500)}
    return bytes(choices[damage])


@pytest.mark.parametrize(
    ("damage", "at"), [("cut", 0), ("flip", 0), ("flip", 40), ("zero", 0), ("replace", 0)]
)
def test_a_file_whose_index_is_damaged_is_computed_again(
    tmp_path: Path, featurizer: LoudnessFeaturizer, damage: str, at: int
) -> None:
    clips = make_clips(tmp_path / "wavs", 1)
    before, _ = collect_anew(tmp_path, clips, featurizer)
    pack = next((tmp_path / "cache").rglob("*.safetensors"))
    content = pack.read_bytes()
    replace_file(pack, damaged(content, damage, content.index(b"wave") + at))

    after, unusable = collect_anew(tmp_path, clips, featurizer)

    assert (len(featurizer.calls()), unusable) == (2, {})
    np.testing.assert_array_equal(before["c000"]["wave"], after["c000"]["wave"])


def collect_anew(
    folder: Path, clips: list[Clip], featurizer: LoudnessFeaturizer
) -> tuple[dict[str, Features], dict[str, str]]:
    """Collect as a new process does, which has nothing mapped."""
    cache = FeatureCache(folder / "cache")
    return cache.collect(clips, featurizer, workers=0, progress=say_nothing)


def test_a_flipped_bit_in_an_array_is_noticed_where_it_is_read_and_mended_by_a_new_start(
    tmp_path: Path, featurizer: LoudnessFeaturizer
) -> None:
    clips = make_clips(tmp_path / "wavs", 2)
    before, _ = collect_anew(tmp_path, clips, featurizer)
    pack = next((tmp_path / "cache").rglob("*.safetensors"))
    wave = before["c000"]["wave"].tobytes()
    content = pack.read_bytes()
    replace_file(pack, damaged(content, "flip", content.index(wave) + len(wave) // 2))

    after, _ = collect_anew(tmp_path, clips, featurizer)
    lengths = [int(features["text_length"]) for features in after.values()]
    with pytest.raises(DamagedFeatures, match="clip .* damaged.*Resume"):
        after["c000"]["wave"]
    mended, _ = collect_anew(tmp_path, clips, featurizer)

    assert lengths == [6, 6]
    assert DamagedFeatures.exit_code == 30
    np.testing.assert_array_equal(mended["c000"]["wave"], before["c000"]["wave"])
    assert len(featurizer.calls()) == 4


@pytest.mark.parametrize(
    "look",
    [lambda f: f["wave"], lambda f: f.get("wave"), lambda f: list(f.items()), lambda f: f | {},
     lambda f: list(f.values()), lambda f: {} | f, lambda f: {**f}, dict],
)  # fmt: skip
def test_no_way_to_the_arrays_of_a_clip_leaves_damage_unnoticed(
    tmp_path: Path, featurizer: LoudnessFeaturizer, look: Callable
) -> None:
    clips = make_clips(tmp_path / "wavs", 1)
    collect_anew(tmp_path, clips, featurizer)
    pack = next((tmp_path / "cache").rglob("*.safetensors"))
    replace_file(pack, damaged(pack.read_bytes(), "flip", -9))
    features = collect_anew(tmp_path, clips, featurizer)[0]["c000"]

    with pytest.raises(DamagedFeatures):
        look(features)


def test_features_are_mapped_and_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_FILE_BYTES", 8 * 2**20)
    clips = make_clips(tmp_path / "wavs", 20)
    tracemalloc.start()

    features, _ = collect_anew(tmp_path, clips, MegabyteFeaturizer())  # type: ignore[arg-type]

    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    packs = list((tmp_path / "cache").rglob("*.safetensors"))
    assert len(packs) == 3
    assert sum(pack.stat().st_size for pack in packs) > 20 * 2**20
    assert held < 2**20
    assert peak < 14 * 2**20
    assert all(int(features[clip.id]["big"][0]) == clip.line for clip in clips)


class MegabyteFeaturizer:
    """Gives every clip a megabyte."""

    fingerprint = "megabyte"

    def __call__(self, clip: Clip) -> Features:
        return {"big": np.full(2**20, clip.line, np.uint8)}


def test_workers_compute_the_same_with_one_thread_each(
    tmp_path: Path, featurizer: LoudnessFeaturizer, collect: Callable
) -> None:
    clips = make_clips(tmp_path / "wavs", 40)
    told: list[tuple[int, int]] = []

    features, unusable = FeatureCache(tmp_path / "other").collect(
        clips, featurizer, workers=2, progress=lambda phase, done, total: told.append((done, total))
    )
    here, _ = collect(clips, featurizer)

    assert (list(features), unusable) == ([clip.id for clip in clips], {})
    assert told == [(done, 40) for done in range(41)]
    assert {words[2] for words in featurizer.calls()[:40]} == {"1"}
    assert str(os.getpid()) not in {words[1] for words in featurizer.calls()[:40]}
    np.testing.assert_array_equal(features["c007"]["wave"], here["c007"]["wave"])


@pytest.mark.fault("D10", "E13")
def test_a_clip_that_kills_its_worker_costs_no_other(
    tmp_path: Path, featurizer: LoudnessFeaturizer, collect: Callable
) -> None:
    clips = make_clips(tmp_path / "wavs", 34)
    clips[5] = replace(clips[5], text="die")

    features, unusable = collect(clips, featurizer, workers=1)

    assert len(features) == 33
    assert list(unusable) == ["c005"]
    assert "crashed" in unusable["c005"]


def test_an_interrupted_collection_keeps_what_was_done(
    tmp_path: Path, featurizer: LoudnessFeaturizer, collect: Callable
) -> None:
    clips = make_clips(tmp_path / "wavs", 4)

    def interrupt(phase: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FeatureCache(tmp_path / "cache").collect(clips, featurizer, workers=0, progress=interrupt)
    collect(clips, featurizer)

    assert [words[0] for words in featurizer.calls()] == ["c000", "c001", "c002", "c003"]
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_folder_that_cannot_be_written_costs_the_cache_only(
    tmp_path: Path, featurizer: LoudnessFeaturizer
) -> None:
    clips = make_clips(tmp_path / "wavs", 1)
    (tmp_path / "a_file").write_text("not a folder")

    cache = FeatureCache(tmp_path / "a_file")
    features, _ = cache.collect(clips, featurizer, workers=0, progress=say_nothing)

    assert list(features) == ["c000"]


def test_a_survey_is_computed_once_per_key_and_read_back_equal(tmp_path: Path) -> None:
    calls = []

    def compute() -> Corpus:
        calls.append(time.monotonic())
        features = {"c1": {"mel": np.ones((3, 4), np.float32), "ids": np.arange(5)}}
        return Corpus({"symbols": ("a", "b"), "mean": 0.1}, features, {"c2": "Too short."})

    cache = FeatureCache(tmp_path)
    first, second = cache.remember("one", {}, compute), cache.remember("one", {}, compute)
    cache.remember("two", {}, compute)

    assert len(calls) == 2
    assert first.facts == second.facts == {"symbols": ["a", "b"], "mean": 0.1}
    assert second.unusable == {"c2": "Too short."}
    np.testing.assert_array_equal(second.features["c1"]["ids"], np.arange(5))
    assert second.features["c1"]["mel"].dtype == np.float32


def test_a_survey_does_not_store_features_again_that_it_passes_on(
    tmp_path: Path, featurizer: LoudnessFeaturizer
) -> None:
    clips = make_clips(tmp_path / "wavs", 40)
    features, _ = collect_anew(tmp_path, clips, featurizer)
    cache = FeatureCache(tmp_path / "cache")
    mapped, _ = cache.collect(clips, featurizer, workers=0, progress=say_nothing)

    def survey() -> Corpus:
        passed_on = {
            i: found | {"length": np.array(len(found["wave"]))} for i, found in mapped.items()
        }
        return Corpus({}, passed_on)

    first = cache.remember("one", mapped, survey)
    second = FeatureCache(tmp_path / "cache").remember("one", mapped, survey)

    size = sum(path.stat().st_size for path in (tmp_path / "cache" / "surveys").iterdir())
    assert size < 0.2 * sum(array["wave"].nbytes for array in features.values())
    for corpus in (first, second):
        np.testing.assert_array_equal(corpus.features["c007"]["wave"], features["c007"]["wave"])
        assert int(corpus.features["c007"]["length"]) == len(features["c007"]["wave"])
        assert corpus.features["c007"]["none"].shape == (0, 3)


def test_a_survey_stays_valid_when_the_features_it_refers_to_are_computed_again(
    tmp_path: Path, featurizer: LoudnessFeaturizer
) -> None:
    clips = make_clips(tmp_path / "wavs", 3)
    calls = []

    def remember() -> Corpus:
        cache = FeatureCache(tmp_path / "cache")
        mapped, _ = cache.collect(clips, featurizer, workers=0, progress=say_nothing)
        calls.append(len(featurizer.calls()))
        return cache.remember("one", mapped, lambda: calls.append(-1) or Corpus({}, mapped))  # type: ignore[func-returns-value]

    before = remember()
    next((tmp_path / "cache" / "features").rglob("*.safetensors")).unlink()
    after = remember()
    remember()

    assert calls == [3, -1, 6, 6]
    np.testing.assert_array_equal(after.features["c001"]["wave"], before.features["c001"]["wave"])


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIMBRE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert default_cache_folder() == Path("/home/ann/.cache/timbre")

    monkeypatch.setenv("XDG_CACHE_HOME", "/fast")
    assert default_cache_folder() == Path("/fast/timbre")
    monkeypatch.setenv("TIMBRE_CACHE", "/own")
    assert default_cache_folder() == Path("/own")


def test_the_content_hash_follows_the_bytes_not_the_name(tmp_path: Path) -> None:
    for name, data in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).write_bytes(data)

    hashes = [content_hash(tmp_path / name) for name in "abc"]

    assert hashes[0] == hashes[1] != hashes[2]
