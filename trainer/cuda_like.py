"""What a CUDA device would keep, reckoned on a machine without one."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from trainer.models._layers.attention import causal_in_rows

_IN_FP32 = {
    F.layer_norm, torch.layer_norm, F.group_norm, torch.group_norm, F.rms_norm,
    F.softmax, torch.softmax, Tensor.softmax, F.log_softmax, torch.log_softmax,
    F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss,
    torch.pow, Tensor.pow, torch.exp, Tensor.exp, torch.log, Tensor.log, torch.log1p,
    torch.rsqrt, Tensor.rsqrt, torch.sum, Tensor.sum, torch.cumsum, Tensor.cumsum,
    torch.norm, Tensor.norm, F.softplus,
}  # fmt: skip
"""What autocast runs in fp32 on CUDA but in the type of its input on a CPU, of what models use."""


class CudaLike(TorchFunctionMode):
    """Makes operators on the CPU keep what they would keep on CUDA.

    Fused attention is taken with dropout too (on a CPU it is not), since the CUDA kernels draw it
    again in the backward pass; under autocast, norms, softmax and losses run in fp32.
    """

    def __init__(self, *, is_autocast: bool) -> None:
        super().__init__()
        self._is_autocast = is_autocast

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function as CUDA would."""
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
        elif func is causal_in_rows:
            return F.scaled_dot_product_attention(*args[:3], is_causal=True)
        elif self._is_autocast and func in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map(_widened, (args, kwargs))
        return func(*args, **kwargs)


def _widened(value: Any) -> Any:
    is_half = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_half else value
