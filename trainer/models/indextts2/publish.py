"""A base folder out: gpt.pth, config.yaml and bpe.model as the original loads them."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.errors import CheckpointError

LICENCE_FILE = "LICENSE-WEIGHTS.txt"

LICENCE = (
    "The weights of IndexTTS-2 are under the bilibili model licence: free to use, also "
    "commercially below 100 million monthly users and 1 billion RMB of yearly revenue; whoever "
    "passes on weights trained from them must pass these terms on with a disclaimer; and neither "
    "they nor what they make may be used to improve other AI models, except IndexTTS-2 itself and "
    "non-commercial ones. The whole text: https://github.com/index-tts/index-tts/blob/main/LICENSE"
)
"""Holds for every folder without a LICENSE-WEIGHTS.txt of its own."""

DISCLAIMER = (
    "These weights were changed by fine-tuning. bilibili did not make the changes and does not "
    "answer for them or for what is spoken with them."
)


def write_published(
    folder: Path,
    state: dict[str, Tensor],
    config: dict[str, Any],
    *,
    bpe_model: bytes,
    licence: str,
) -> None:
    """Write the four files; those of the same names are replaced, each at once.

    state: all tensors under the published names. The text tables' rows give number_text_tokens.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    import yaml

    gpt = dict(config.get("gpt", {}))
    # The tables have one row more than the tokenizer has tokens.
    gpt["number_text_tokens"] = len(state["text_embedding.weight"]) - 1
    text = yaml.safe_dump(config | {"gpt": gpt}, sort_keys=False, allow_unicode=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
        try:
            _save(partial / "gpt.pth", state)
            (partial / "config.yaml").write_text(text, encoding="utf-8")
            if bpe_model:
                (partial / "bpe.model").write_bytes(bpe_model)
            (partial / LICENCE_FILE).write_text(licence + "\n", encoding="utf-8")
            for path in sorted(partial.iterdir()):
                os.replace(path, folder / path.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"The model could not be written to {folder}: {error}. Free some space there, or "
            "export to another folder."
        ) from None


def _save(path: Path, state: dict[str, Tensor]) -> None:
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
