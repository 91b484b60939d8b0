"""Speech through the original package, which lives in an environment and a process of its own."""

import json
import os
import signal
import subprocess
import tempfile
import wave
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.data.cache import default_cache_folder
from trainer.errors import CheckpointError
from trainer.specs import Speech

OWN_FILES = ("gpt.pth", "config.yaml", "bpe.model", "LICENSE-WEIGHTS.txt")
"""What a preview puts in place of the files of these names; the others are linked."""

_FILES = {
    "s2mel.pth": "the s2mel network",
    "wav2vec2bert_stats.pt": "the statistics of semantic features",
    "feat1.pt": "the matrix of speakers",
    "feat2.pt": "the matrix of emotions",
    "config.yaml": "its configuration",
    "hf_cache/models--facebook--w2v-bert-2.0": "w2v-bert-2.0",
    "hf_cache/models--amphion--MaskGCT": "the semantic codec",
    "hf_cache/models--funasr--campplus": "the speaker encoder CAM++",
    "hf_cache/models--nvidia--bigvgan_v2_22khz_80band_256x": "the vocoder BigVGAN",
}
_CHILD = Path(__file__).with_name("original_child.py")


@dataclass(frozen=True)
class Original:
    """Where the original package and its weights are, and whose voice it takes.

    python: of the environment in which the package `indextts` is installed. folder: its
    `checkpoints`, with the `hf_cache` that its first use fills. reference: a recording.
    """

    python: str = ""
    folder: str = ""
    reference: str = ""
    device: str = "cpu"
    limit_s: float = 600.0

    @property
    def is_wanted(self) -> bool:
        """Whether a person named any part of it."""
        return bool(self.python or self.folder or self.reference)

    def lacks(self) -> str:
        """Return what is missing, in a sentence; empty: nothing that can be seen from here."""
        named = {
            "the Python of its environment": self.python,
            "its folder checkpoints": self.folder,
            "a recording as reference": self.reference,
        }
        absent = [f"{what} ({path})" if path else what for what, path in named.items()]
        absent = [
            words
            for words, path in zip(absent, named.values(), strict=True)
            if not path or not Path(path).exists()
        ]
        if self.folder and Path(self.folder).is_dir():
            absent += [
                f"{what} ({Path(self.folder) / name})"
                for name, what in _FILES.items()
                if not (Path(self.folder) / name).exists()
            ]
        if not absent:
            return ""
        return (
            f"the original package cannot speak, as it lacks {', '.join(absent)}. Let it speak "
            "once by itself, which fetches what it needs, and name all three among the options."
        )

    def speak(self, text: str, put_weights: Callable[[Path], None], *, most_codes: int) -> Speech:
        """Return what the original package says with other weights.

        put_weights(folder) writes them into a copy of its folder, in which all else is linked.
        most_codes: after so many a sentence ends that the weights do not end.

        Raises:
            CheckpointError: something is missing, it fails, or it takes too long.
        """
        parent = default_cache_folder() / "indextts2-spoken"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=parent) as name:
                work = Path(name)
                self._lay_out(work / "checkpoints")
                put_weights(work / "checkpoints")
                return self._ask(text, work, most_codes)
        except OSError as error:
            raise CheckpointError(
                f"The original package could not be asked to speak in {parent}: "
                f"{error.strerror or error}. Free some space there, and see that the Python named "
                "can be run."
            ) from None

    def _lay_out(self, folder: Path) -> None:
        folder.mkdir()
        for path in Path(self.folder).resolve().iterdir():
            if path.name not in OWN_FILES:
                (folder / path.name).symlink_to(path)

    def _ask(self, text: str, work: Path, most_codes: int) -> Speech:
        task = {
            "text": text,
            "reference": str(Path(self.reference).resolve()),
            "device": "cuda:0" if self.device == "gpu" else "cpu",
            "seed": 0,
            "codes": most_codes,
        }
        (work / "task.json").write_text(json.dumps(task), encoding="utf-8")
        ending = self._run(work)
        try:
            outcome = json.loads((work / "outcome.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            outcome = {"failed": ending or "its process ended without a word"}
        if "missing" in outcome:
            raise CheckpointError(
                f"The original package lacks something: {outcome['missing']}. Let it speak once by "
                "itself, which fetches what it needs, and name its environment and folder again."
            )
        if "failed" in outcome:
            raise CheckpointError(
                f"The original package did not speak: {outcome['failed']}. See that it speaks by "
                "itself, in the environment and with the folder that are named."
            )
        return _read_wave(work / "spoken.wav")

    def _run(self, work: Path) -> str:
        """Run the child to its end; return why it failed, if it left without a word."""
        # Not resolved: the interpreter of a virtual environment is a link out of it.
        command = [str(Path(self.python).absolute()), str(_CHILD), str(work)]
        with (work / "child.log").open("wb") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=work,
                start_new_session=True,
            )  # fmt: skip
            try:
                child.wait(timeout=self.limit_s)
            except subprocess.TimeoutExpired:
                return f"it took more than {self.limit_s:.0f} s"
            finally:
                _end(child)
        lines = (work / "child.log").read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"its process ended with code {child.returncode} ({last[-300:]})"


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a child and whatever it started."""
    if child.poll() is None:
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _read_wave(path: Path) -> Speech:
    with wave.open(str(path), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return Speech(samples.astype(np.float32) / 32768, file.getframerate())
