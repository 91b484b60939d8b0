"""Synthesize through the original package, which runs in its own environment and process."""

import json
import tempfile
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.core.child_process import end_child, start_child, wait_for_child
from trainer.core.errors import CheckpointError
from trainer.core.specs import Speech
from trainer.data.features.cache import default_cache_folder

OWN_FILES = ("gpt.pth", "config.yaml", "bpe.model", "LICENSE-WEIGHTS.txt")
"""The files that a preview replaces with its own; all others are linked."""

# Looked for before the child starts, because these names say more than the package's errors.
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
_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Original:
    """Location of the original package and its weights, and the voice for its speech.

    python: the interpreter of the environment in which the package `indextts` is installed.
    folder: its `checkpoints`, with the `hf_cache` that its first use fills. reference: a recording
    of the voice. limit_s: the longest time for a preview, in seconds.
    """

    python: str = ""
    folder: str = ""
    reference: str = ""
    device: str = "cpu"
    limit_s: float = 600.0

    @property
    def is_wanted(self) -> bool:
        """Whether any of the three paths is set."""
        return bool(self.python or self.folder or self.reference)

    def lacks(self) -> str:
        """Return a sentence with the files that are missing, or "" if all can be found."""
        named = {
            "the Python of its environment": self.python,
            "its checkpoints folder": self.folder,
            "a reference recording": self.reference,
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
            f"the original package cannot run, because these are missing: {', '.join(absent)}. "
            "Run it once by itself, so that it downloads what it needs, and set all three paths "
            "in the options."
        )

    def speak(self, text: str, put_weights: Callable[[Path], None], *, most_codes: int) -> Speech:
        """Return the speech of the original package with other weights.

        put_weights(folder) writes the weights into a copy of its folder; the other files there are
        links. most_codes: the limit for a sentence that the model does not end by itself.

        Raises:
            CheckpointError: a file is missing, the package fails, or it takes too long.
        """
        parent = default_cache_folder() / "indextts2-spoken"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            # In the cache folder: /tmp may be too small for gigabytes of weights, or be memory.
            with tempfile.TemporaryDirectory(dir=parent) as name:
                work = Path(name)
                self._lay_out(work / "checkpoints")
                put_weights(work / "checkpoints")
                return self._ask(text, work, most_codes)
        except OSError as error:
            raise CheckpointError(
                f"The original package could not be started in {parent}: "
                f"{error.strerror or error}. Free disk space there, and check that its Python can "
                "be run."
            ) from None

    def _lay_out(self, folder: Path) -> None:
        folder.mkdir()
        # Links, because copying gigabytes for each preview would be slow.
        for path in Path(self.folder).resolve().iterdir():
            if path.name not in OWN_FILES:
                (folder / path.name).symlink_to(path)

    def _ask(self, text: str, work: Path, most_codes: int) -> Speech:
        task = {
            "text": text,
            "reference": str(Path(self.reference).resolve()),
            "device": "cuda:0" if self.device == "gpu" else "cpu",
            # Always the same, so that previews of different steps can be compared.
            "seed": 0,
            "codes": most_codes,
        }
        (work / "task.json").write_text(json.dumps(task), encoding="utf-8")
        ending = self._run(work)
        try:
            outcome = json.loads((work / "outcome.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            outcome = {"failed": ending or "its process ended without a message"}
        if "missing" in outcome:
            raise CheckpointError(
                f"The original package cannot run, because this is missing: {outcome['missing']}. "
                "Run it once by itself, so that it downloads what it needs, and check the paths in "
                "the options."
            )
        if "failed" in outcome:
            raise CheckpointError(
                f"The original package failed: {outcome['failed']}. Check that it works by itself, "
                "with the environment and folder that are set in the options."
            )
        return _read_wave(work / "spoken.wav")

    def _run(self, work: Path) -> str:
        """Run the child until it ends; return the reason in case it left no outcome.json."""
        # absolute, not resolve: the interpreter of a virtual environment is a symlink, and its
        # target does not know the environment.
        command = [str(Path(self.python).absolute()), str(_CHILD), str(work)]
        with (work / "child.log").open("wb") as log:
            # The environment is the caller's: the package has packages of its own.
            child = start_child(command, output=log, folder=work)
            try:
                if not wait_for_child(child, self.limit_s):
                    return f"it took more than {self.limit_s:.0f} s"
            finally:
                end_child(child)
        lines = (work / "child.log").read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"its process ended with code {child.returncode} ({last[-300:]})"


def _read_wave(path: Path) -> Speech:
    with wave.open(str(path), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        # 16-bit samples become floats in [-1, 1).
        return Speech(samples.astype(np.float32) / 32768, file.getframerate())
