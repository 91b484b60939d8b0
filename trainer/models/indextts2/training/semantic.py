"""Semantic features: a hidden layer of w2v-bert-2.0, normalized as the codec expects."""

import numpy as np
import torch
from torch import Tensor, nn

from trainer.core.errors import CheckpointError, MissingDependency
from trainer.models.indextts2.checkpoint.base_folder import Base

LAYER = 17
"""Index of the hidden state that upstream uses; 0 is the input of the first layer."""


class SemanticFeatures:
    """Filterbank -> features; a random base uses the filterbank itself as features.

    Raises:
        MissingDependency: transformers is not installed.
        CheckpointError: the folder or the statistics cannot be used.
    """

    def __init__(self, base: Base, folder: str) -> None:
        self.mean, self.std = base.stats()
        self._network = None if base.is_random else _load_network(folder, base.sizes.feature_width)

    @torch.inference_mode()
    def __call__(self, filterbank: np.ndarray) -> Tensor:
        """filterbank: (T, 160). Returns (1, T, F)."""
        features = torch.from_numpy(filterbank)[None]
        if self._network is not None:
            found = self._network(input_features=features, output_hidden_states=True)
            features = found.hidden_states[LAYER]
        return (features - self.mean) / self.std


def _load_network(folder: str, width: int) -> nn.Module:
    try:
        from transformers import Wav2Vec2BertModel  # type: ignore[import-not-found]
    except ImportError:
        raise MissingDependency("transformers", "Computing features of audio") from None
    try:
        # No pickles, because they can run code, and no downloads.
        network = Wav2Vec2BertModel.from_pretrained(
            folder, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder} cannot be opened as w2v-bert-2.0: {str(error)[:200]}. Choose a folder with "
            "its config.json and model.safetensors."
        ) from None
    if network.config.hidden_size != width or network.config.num_hidden_layers < LAYER:
        raise CheckpointError(
            f"The network in {folder} is {network.config.hidden_size} wide and has "
            f"{network.config.num_hidden_layers} layers; expected a width of {width} and at least "
            f"{LAYER} layers. Choose the folder of facebook/w2v-bert-2.0."
        )
    return network.eval().requires_grad_(False)
