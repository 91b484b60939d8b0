"""Make the demo corpus in assets/demo: two synthetic voices that read our own sentences.

    python -m assets.make_demo            # writes assets/demo afresh; about two minutes

assets/README.md names the packages to install first, the engines' licences and their versions.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from assets.engines import Voice, engine_versions, speak

ASSETS = Path(__file__).parent
SENTENCES = ASSETS / "sentences"
HEADER = "audio_file|text|speaker_name"
SEED = 20_260
# Vorbis at this level keeps 24 kHz speech near 50 kbit/s, which a recogniser reads as well as PCM.
COMPRESSION = 0.7

DEMO_VOICES = (
    Voice("hana", "hibari", "heart"),
    Voice("rowan", "kokoro", "jm_kumo"),
)


@dataclass(frozen=True)
class Row:
    """One spoken clip of a corpus."""

    audio_file: str
    text: str
    speaker: str
    duration_s: float


def main() -> None:
    """Read the command line and write the corpus."""
    parser = argparse.ArgumentParser(description="Make the demo corpus.")
    parser.add_argument("--out", type=Path, default=ASSETS / "demo", help="folder to write")
    folder: Path = parser.parse_args().out
    if folder.exists():
        shutil.rmtree(folder)
    rows = {split: speak_split(folder, split) for split in ("train", "eval")}
    for split, spoken in rows.items():
        write_csv(folder / f"{split}.csv", spoken)
    write_about(folder, rows)
    print(f"{folder}: {sum(len(spoken) for spoken in rows.values())} clips")


def speak_split(folder: Path, split: str) -> list[Row]:
    """Speak the sentences of one split with every demo voice that has any."""
    rows = []
    for voice in DEMO_VOICES:
        texts = read_sentences(SENTENCES / f"{voice.speaker}_{split}.txt")
        for number, text in enumerate(texts, start=1):
            name = f"clips/{voice.speaker}/{split}_{number:03d}.ogg"
            rows.append(speak_clip(folder, name, voice, text, SEED + number))
    return rows


def speak_clip(folder: Path, name: str, voice: Voice, text: str, seed: int) -> Row:
    """Speak one sentence into a file below the folder; a clip that is there already is kept.

    The suffix of the name picks the format.
    """
    import soundfile

    path = folder / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        wave, sample_rate = speak(voice, text, seed)
        level = COMPRESSION if path.suffix == ".ogg" else None
        soundfile.write(str(path), wave, sample_rate, compression_level=level)
    return Row(name, text, voice.speaker, soundfile.info(str(path)).duration)


def read_sentences(path: Path) -> list[str]:
    """Read one sentence a line; empty lines do not count."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows in the Coqui form, with its header."""
    lines = [HEADER, *(f"{row.audio_file}|{row.text}|{row.speaker}" for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def write_about(folder: Path, rows: dict[str, list[Row]]) -> None:
    """Write which engine spoke what, in which version, so that the corpus documents itself."""
    about = {
        "command": "python -m assets.make_demo",
        "seed": SEED,
        "engines": engine_versions({voice.engine for voice in DEMO_VOICES}),
        "voices": [asdict(voice) for voice in DEMO_VOICES],
        "clips": {split: _amounts(spoken) for split, spoken in rows.items()},
    }
    text = json.dumps(about, indent=2) + "\n"
    (folder / "about.json").write_text(text, encoding="utf-8", newline="\n")


def _amounts(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    speakers = sorted({row.speaker for row in rows})
    chosen = {name: [row for row in rows if row.speaker == name] for name in speakers}
    return {
        name: {"clips": len(mine), "seconds": round(sum(row.duration_s for row in mine), 1)}
        for name, mine in chosen.items()
    }


if __name__ == "__main__":
    main()
