"""Parameter groups: which weights are decayed and which are not."""

from typing import Any

from torch import nn

_UNDECAYED_MODULES = (
    nn.Embedding,
    nn.EmbeddingBag,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
)


def param_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the trainable parameters into decayed ones and others, each exactly once.

    Biases, norms, embeddings and weight-norm gains are not decayed: pulling them to zero moves the
    function without making it simpler. The order is the model's own, so that it survives a resume.
    """
    undecayed = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, _UNDECAYED_MODULES)
        for parameter in module.parameters(recurse=False)
    }
    decayed_group: dict[str, Any] = {"params": [], "weight_decay": weight_decay}
    other_group: dict[str, Any] = {"params": [], "weight_decay": 0.0}
    for parameter in model.parameters():
        if parameter.requires_grad:
            # One number per output is a bias or a gain, whatever its number of dimensions.
            is_vector = parameter.dim() == 0 or parameter.numel() == parameter.size(0)
            is_decayed = not is_vector and id(parameter) not in undecayed
            (decayed_group if is_decayed else other_group)["params"].append(parameter)
    return [group for group in (decayed_group, other_group) if group["params"]]
