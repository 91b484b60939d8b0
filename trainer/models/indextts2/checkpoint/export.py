"""Write gpt.pth, config.yaml and bpe.model in the form that the original package loads."""

from pathlib import Path

import torch
from torch import Tensor

from trainer.core.run_config import WRITTEN_BY
from trainer.core.version import __version__
from trainer.models._conversion_cache import LICENCE_FILE
from trainer.models._json import Json
from trainer.models._weights import publishing

LICENCE = (
    "The weights of IndexTTS-2 are under the bilibili model licence: free to use, also "
    "commercially below 100 million monthly users and 1 billion RMB of yearly revenue; anyone who "
    "distributes weights trained from them must pass on these terms with a disclaimer; and "
    "neither the weights nor their output may be used to improve other AI models, except "
    "IndexTTS-2 itself and non-commercial ones. Full text: "
    "https://github.com/index-tts/index-tts/blob/main/LICENSE"
)
"""Applies to every folder that has no LICENSE-WEIGHTS.txt."""

DISCLAIMER = (
    "These weights were modified by fine-tuning. bilibili did not make the modifications and is "
    "not responsible for them or for speech that is generated with them."
)


def write_published(
    folder: Path,
    state: dict[str, Tensor],
    config: Json,
    *,
    bpe_model: bytes,
    licence: str,
) -> None:
    """Write the files into a folder; each one replaces an existing file atomically.

    state: all tensors by their published names; the rows of the text tables determine
    number_text_tokens.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    import yaml

    gpt = dict(config.get("gpt", {}))
    # Upstream's text tables have one row more than number_text_tokens.
    gpt["number_text_tokens"] = len(state["text_embedding.weight"]) - 1
    text = f"# {WRITTEN_BY}: {__version__}\n"
    text += yaml.safe_dump(config | {"gpt": gpt}, sort_keys=False, allow_unicode=True)
    with publishing(folder) as partial:
        torch.save(state, partial / "gpt.pth")
        (partial / "config.yaml").write_text(text, encoding="utf-8")
        if bpe_model:
            (partial / "bpe.model").write_bytes(bpe_model)
        (partial / LICENCE_FILE).write_text(licence + "\n", encoding="utf-8")
