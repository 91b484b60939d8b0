"""Imitate on the CPU what operators keep in memory on CUDA, so that memory can be estimated."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from trainer.models._layers.attention import causal_in_rows
from trainer.profiling.memory_tracker import Arguments, Named, Operator

# Operators that autocast runs in fp32 on CUDA but in the input's type on a CPU: those of PyTorch's
# "CUDA Ops that can autocast to float32" list that our models use.
_IN_FP32 = {
    F.layer_norm, torch.layer_norm, F.group_norm, torch.group_norm, F.rms_norm,
    F.softmax, torch.softmax, Tensor.softmax, F.log_softmax, torch.log_softmax,
    F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss,
    torch.pow, Tensor.pow, torch.exp, Tensor.exp, torch.log, Tensor.log, torch.log1p,
    torch.rsqrt, Tensor.rsqrt, torch.sum, Tensor.sum, torch.cumsum, Tensor.cumsum,
    torch.norm, Tensor.norm, F.softplus,
}  # fmt: skip


class CudaSemantics(TorchFunctionMode):
    """Make operators on the CPU store what they would store on CUDA for the backward pass.

    Attention stays fused even with dropout, and under autocast norms, softmax and losses run in
    fp32.
    """

    def __init__(self, *, is_autocast: bool) -> None:
        super().__init__()
        self._is_autocast = is_autocast

    def __torch_function__(
        self, func: Operator, types: object, args: Arguments = (), kwargs: Named = None
    ) -> object:
        """Run a torch function with the memory behaviour of CUDA."""
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            # With dropout the CPU falls back to unfused attention and stores the whole score
            # matrix. The CUDA kernels stay fused and draw the same mask again in the backward
            # pass, so leaving dropout out counts what they store.
            kwargs["dropout_p"] = 0.0
        elif func is causal_in_rows:
            # Our own attention in rows is for CPUs only; on CUDA the fused kernel is used.
            return F.scaled_dot_product_attention(*args[:3], is_causal=True)
        elif self._is_autocast and func in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map(_upcast, args), dict(tree_map(_upcast, kwargs))
        return func(*args, **kwargs)


def _upcast(value: object) -> object:
    if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16):
        return value.float()
    return value
