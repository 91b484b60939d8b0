"""Parameter groups: which weights get weight decay and which do not."""

from typing import Any

from torch import Tensor, nn

Group = dict[str, Any]
"""A parameter group of torch: `params`, and the options of its optimizer by name."""
StateDict = dict[str, Any]
"""What torch saves of an optimizer: `state` by the weight's position, and `param_groups`."""

_UNDECAYED_MODULES = (
    nn.Embedding,
    nn.EmbeddingBag,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
)


def param_groups(model: nn.Module, weight_decay: float) -> list[Group]:
    """Split the trainable parameters into a decayed group (`are_matrices`) and an exempt one.

    Biases, norms, embeddings and weight-norm gains are exempt: shrinking them changes the function
    without making it simpler. Parameters keep the model's order, because optimizers match saved
    state to parameters by position.
    """
    undecayed = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, _UNDECAYED_MODULES)
        for parameter in module.parameters(recurse=False)
    }
    decayed_group = _empty_group(weight_decay, are_matrices=True)
    other_group = _empty_group(0.0, are_matrices=False)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_decayed = not is_vector(parameter) and id(parameter) not in undecayed
            group = decayed_group if is_decayed else other_group
            group["params"].append(parameter)
            group["param_names"].append(name)
    return [group for group in (decayed_group, other_group) if group["params"]]


def is_vector(weight: Tensor) -> bool:
    """Return whether a weight of any shape holds one number per output, like a bias or a gain."""
    # Counting dimensions is not enough: weight-norm gains of convolutions have shape (out, 1, 1).
    return weight.dim() == 0 or weight.numel() == weight.size(0)


def _empty_group(weight_decay: float, *, are_matrices: bool) -> Group:
    return {
        "params": [],
        "param_names": [],
        "weight_decay": weight_decay,
        "are_matrices": are_matrices,
    }
