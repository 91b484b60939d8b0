"""The child that speaks through the original package; it runs there and knows nothing of ours.

    PYTHON original_child.py FOLDER

FOLDER holds task.json and `checkpoints` as the package expects them; the answer is outcome.json and
spoken.wav. Nothing is fetched from anywhere: what is not there is named.
"""

import json
import os
import sys
import wave
from pathlib import Path
from typing import Any


def main() -> None:
    """Do the task of a folder."""
    folder = Path(sys.argv[1]).resolve()
    # The files beside this script have names that packages may have too.
    sys.path.pop(0)
    # The package looks for its cache below the current folder.
    os.chdir(folder)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    (folder / "outcome.json").write_text(json.dumps(speak(task, folder)), encoding="utf-8")


def speak(task: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write spoken.wav; return nothing, or what is missing or why it failed."""
    try:
        import torch
        from indextts import infer_v2  # type: ignore[import-not-found]
    except ImportError as error:
        return {"missing": f"the package {error.name or error}"}
    # It tells emotions from text; previews take the emotion of the reference.
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
        # What its cache lacks comes as one of several kinds of OSError.
        kind = "missing" if isinstance(error, OSError) else "failed"
        return {kind: f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
    if spoken is None:
        return {"failed": "it made no audio"}
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
