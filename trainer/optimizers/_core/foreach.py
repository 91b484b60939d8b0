"""Torch's multi-tensor (foreach) operations under short names, for tensors of any shape.

One call, and on a GPU one kernel launch, handles a whole list. Names that end with an underscore
change the first list in place, as everywhere in torch.
"""

from typing import Any

import torch

# The names are private, but PyTorch documents them and builds its own optimizers on them.
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

# The overloads that take one scalar tensor. The functions above treat a 0-d tensor as a Python
# number and read it, which makes the host wait for the device.
scale = torch.ops.aten._foreach_mul.Tensor
scale_ = torch.ops.aten._foreach_mul_.Tensor
divide_ = torch.ops.aten._foreach_div_.Tensor
shift_ = torch.ops.aten._foreach_add_.Tensor
