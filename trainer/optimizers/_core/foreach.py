"""Torch's kernels for lists of tensors (any shape): one call, and on a GPU one launch, for all.

A trailing underscore changes the first list in place, as everywhere in torch.
"""

from typing import Any

import torch

# PyTorch keeps the names private but documents them, and its own optimizers are built on them.
_torch: Any = torch

abs = _torch._foreach_abs
add = _torch._foreach_add
add_ = _torch._foreach_add_
addcdiv_ = _torch._foreach_addcdiv_
addcmul_ = _torch._foreach_addcmul_
copy_ = _torch._foreach_copy_
div = _torch._foreach_div
div_ = _torch._foreach_div_
lerp = _torch._foreach_lerp
lerp_ = _torch._foreach_lerp_
mul = _torch._foreach_mul
mul_ = _torch._foreach_mul_
norm = _torch._foreach_norm
sign = _torch._foreach_sign
sign_ = _torch._foreach_sign_
sqrt = _torch._foreach_sqrt
sub = _torch._foreach_sub
sub_ = _torch._foreach_sub_
fused_adamw_ = _torch._fused_adamw_
fused_sgd_ = _torch._fused_sgd_

# With one number for all tensors that lies on the device. The functions above would read it: they
# take a tensor without dimensions for a plain number.
scale = torch.ops.aten._foreach_mul.Tensor
scale_ = torch.ops.aten._foreach_mul_.Tensor
divide_ = torch.ops.aten._foreach_div_.Tensor
shift_ = torch.ops.aten._foreach_add_.Tensor
