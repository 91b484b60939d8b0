"""Child process that synthesizes with the original package, in that package's environment.

    PYTHON child.py FOLDER

FOLDER contains task.json and `checkpoints` as the package expects them. The results are
outcome.json and spoken.wav. Nothing of Timbre is imported, because it is not installed there, and
nothing is downloaded: missing files are reported.
"""

import json
import os
import sys
import wave
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the task of the folder named on the command line."""
    folder = Path(sys.argv[1]).resolve()
    # Python puts this script's folder first, where modules would shadow packages of their name.
    sys.path.pop(0)
    # The package looks for its cache relative to the working directory.
    os.chdir(folder)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    (folder / "outcome.json").write_text(json.dumps(speak(task, folder)), encoding="utf-8")


def speak(task: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write spoken.wav; return {}, or a reason under the key "missing" or "failed"."""
    try:
        import torch
        from indextts import infer_v2  # type: ignore[import-not-found]
    except ImportError as error:
        return {"missing": f"the package {error.name or error}"}
    # This network derives emotions from text. Previews use the reference's emotion, so it need
    # not be loaded.
    infer_v2.QwenEmotion = _NoEmotionFromText
    torch.manual_seed(task["seed"])
    try:
        voice = infer_v2.IndexTTS2(
            cfg_path="checkpoints/config.yaml",
            model_dir="checkpoints",
            device=task["device"],
            use_cuda_kernel=False,
        )
        spoken = voice.infer(task["reference"], task["text"], None, max_mel_tokens=task["codes"])
    except (OSError, RuntimeError, ValueError, LookupError) as error:
        # A file that is missing in its cache raises one of several subclasses of OSError.
        kind = "missing" if isinstance(error, OSError) else "failed"
        return {kind: f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
    if spoken is None:
        return {"failed": "it returned no audio"}
    _write(folder / "spoken.wav", *spoken)
    return {}


class _NoEmotionFromText:
    def __init__(self, folder: str) -> None:
        self.folder = folder


def _write(path: Path, sample_rate: int, samples: Any) -> None:
    """Write 16-bit audio; samples: int16 (T_wav, 1)."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(samples.astype("<i2").tobytes())


if __name__ == "__main__":
    main()
