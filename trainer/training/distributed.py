"""Coordinate the processes that train one run: ranks, sums and agreement.

A single process is a world of size 1, for which every function here returns without communicating.
"""

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from trainer.core.train_state import World

Result = TypeVar("Result")
# Values per all-reduce: 32 MiB in fp32, of the order of DDP's default bucket of 25 MiB. Few large
# messages use the link better than one per parameter, and the flat copy stays small.
_BUCKET_VALUES = 8 * 1024 * 1024
# How long a rank waits for another. Rank 0 computes the features of hours of speech while the
# others wait, and torch's default of ten minutes is too short for that. A lost rank is noticed
# without this limit: its connection breaks.
_TIMEOUT = timedelta(days=1)


def join_world(device_kind: str) -> World:
    """Read RANK, WORLD_SIZE and LOCAL_RANK as torchrun sets them, and join the process group."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device_kind == "cuda":
        torch.cuda.set_device(local_rank)  # NCCL sends from and receives on the current GPU
    if not dist.is_initialized():
        backend = "nccl" if device_kind == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
    return World(int(os.environ["RANK"]), size, local_rank)


def leave_world(world: World) -> None:
    """Leave the process group."""
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def barrier(world: World) -> None:
    """Wait for every rank."""
    if world.size > 1:
        dist.barrier()


def main_first(world: World, fn: Callable[[], Result]) -> Result:
    """Call a function on rank 0 first; the other ranks then find its results in the cache."""
    if world.is_main:
        result = fn()
        barrier(world)
        return result
    barrier(world)
    return fn()


def agree(world: World, words: Iterable[str], among: tuple[str, ...]) -> set[str]:
    """Return rank 0's choice of `words` on every rank."""
    if world.size == 1:
        return set(words)
    # As flags in the order of `among`, because tensors are what every backend can broadcast.
    mine = set(words)
    flags = torch.tensor([word in mine for word in among], dtype=torch.uint8, device=_device())
    dist.broadcast(flags, src=0)
    return {word for word, flag in zip(among, flags.tolist(), strict=True) if flag}


def share_number(world: World, number: int) -> int:
    """Return rank 0's number on every rank."""
    if world.size == 1:
        return number
    value = torch.tensor([number], dtype=torch.int64, device=_device())
    dist.broadcast(value, src=0)
    return int(value.item())


def sum_gradients(model: nn.Module, world: World) -> None:
    """Sum the gradients over all ranks, in place.

    Losses are divided by the totals of the whole step, so the sum is the gradient of one large
    batch.
    """
    if world.size == 1:
        return
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            # Every rank must send the same tensors, also for parameters its clips did not use.
            parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for bucket in _buckets(grads):
        flat = torch.cat([grad.reshape(-1) for grad in bucket])
        dist.all_reduce(flat)
        for grad, part in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
            grad.copy_(part.view_as(grad))


def sum_values(values: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """Sum named scalars over all ranks; every rank must pass the same names in the same order."""
    if world.size == 1 or not values:
        return values
    # One message instead of one for each name.
    stacked = torch.stack([value.detach().float() for value in values.values()])
    dist.all_reduce(stacked)
    return dict(zip(values, stacked.unbind(), strict=True))


def _buckets(grads: list[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for grad in grads:
        # One dtype per bucket, because a bucket becomes one flat tensor.
        if bucket and (size + grad.numel() > _BUCKET_VALUES or grad.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(grad)
        size += grad.numel()
    if bucket:
        yield bucket


def _device() -> torch.device:
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
