"""Keep a model's weights in bf16 while its optimizer updates fp32 copies of them.

With master weights the fp32 copies persist, and the model holds their rounded values. Without
masters the fp32 copies exist only during an optimizer step, a bucket at a time, and are
stochastically rounded back, so that updates too small for bf16 still count on average.
"""

import hashlib
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.models._layers.gpt2 import InputMajorLinear

_ROUNDED = (
    nn.Linear,
    InputMajorLinear,
    nn.Conv1d,
    nn.Conv2d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
)
"""Layers whose weights autocast casts to bf16 at every step anyway, so storing them in bf16 leaves
the forward pass unchanged. Norms and embeddings stay in fp32."""

BUCKET = 1 << 25
"""Entries in fp32 at once during a step, 128 MiB for each copy of them; chosen by hand."""
_ALIGNED = 64
"""Entries: weights start at multiples of this (256 bytes) in a buffer, for vectorised kernels."""
_COUNT = "roundings"
"""Key of the number of steps so far, stored in the first parameter group so that it is saved."""

# The name is private, but PyTorch documents it and builds its own optimizers on it.
_copy_all: Callable[[list[Tensor], list[Tensor]], None] = torch._foreach_copy_  # type: ignore
Build = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class WeightPair:
    """A weight of the model (`low`) and the fp32 copy that the optimizer updates (`high`)."""

    low: nn.Parameter
    high: nn.Parameter


class HalfWeights:
    """The bf16 weights of a model and their fp32 copies; `masters` holds the persistent ones.

    Args:
        is_stochastic: Round stochastically instead of keeping masters.
        in_parts: The optimizer may update a bucket of weights at a time.
        exact_sums: Accumulate the gradients of several micro-steps in fp32.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        is_stochastic: bool,
        in_parts: bool,
        exact_sums: bool,
        seed: int,
    ) -> None:
        self.is_stochastic = is_stochastic
        self._in_parts = in_parts
        self._seed = seed
        self._pairs: list[WeightPair] = []
        self._frozen: list[nn.Parameter] = []
        self.master_weights: dict[str, nn.Parameter] = {}
        rounded = _rounded_weights(model)
        for name, low in model.named_parameters():
            if id(low) not in rounded or low.dtype != torch.float32:
                continue
            # Through `.data`: the parameter stays the same object for all that refer to it.
            full, low.data = low.data, low.data.bfloat16()
            if not low.requires_grad:
                self._frozen.append(low)
                continue
            pair = WeightPair(low, nn.Parameter(_empty(low) if is_stochastic else full))
            self._pairs.append(pair)
            if not is_stochastic:
                self.master_weights[name] = pair.high
            if exact_sums:
                low.grad_dtype = torch.float32

    @contextmanager
    def fp32_weights(self) -> Iterator[None]:
        """Give the model fp32 weights during the block; changes to them are kept afterwards."""
        lows = [*(pair.low for pair in self._pairs), *self._frozen]
        kept = [low.data for low in lows]
        try:
            # Inside the try, because memory may run out halfway; `finally` then restores the rest.
            for pair in self._pairs:
                if self._is_temporary(pair):
                    pair.high.data = pair.low.data.float()
                pair.low.data = pair.high.data
            for low in self._frozen:
                low.data = low.data.float()
            yield
        finally:
            for low, half in zip(lows, kept, strict=True):
                half.copy_(low.data)
                low.data = half
            for pair in filter(self._is_temporary, self._pairs):
                pair.high.data = _empty(pair.low)

    def upcast_weights(self) -> None:
        """Give the model fp32 weights permanently."""
        for pair in self._pairs:
            if self._is_temporary(pair):
                pair.high.data = pair.low.data.float()
            pair.low.data = pair.high.data
            pair.low.grad = None
            pair.low.grad_dtype = torch.float32
        for low in self._frozen:
            low.data = low.data.float()
        self.master_weights.clear()

    def build(self, plainly: Build, model: nn.Module) -> torch.optim.Optimizer:
        """Build an optimizer on the fp32 copies that reads and updates the model's weights."""
        with self.fp32_weights(), self._masters_in_place(model):
            optimizer = plainly(model)
        # The hooks wrap the whole step, so that they fire once and not once per bucket.
        step = torch.optim.Optimizer.profile_hook_step(self._step)
        optimizer.step = types.MethodType(step, optimizer)
        optimizer.zero_grad = types.MethodType(self._zero_grad, optimizer)
        return optimizer

    @contextmanager
    def _masters_in_place(self, model: nn.Module) -> Iterator[None]:
        """Make the fp32 copies the parameters of their modules, so that they get named groups."""
        masters = {id(pair.low): pair.high for pair in self._pairs}
        places = [
            (module, name, value)
            for module in model.modules()
            for name, value in module.named_parameters(recurse=False)
            if id(value) in masters
        ]
        for module, name, value in places:
            setattr(module, name, masters[id(value)])
        try:
            yield
        finally:
            for module, name, value in places:
                setattr(module, name, value)

    def _is_temporary(self, pair: WeightPair) -> bool:
        """Return whether the fp32 copy of a weight exists only during a step."""
        return self.is_stochastic and pair.low.dtype == torch.bfloat16

    @torch.no_grad()
    def _step(self, optimizer: torch.optim.Optimizer, closure: None = None) -> None:
        """Run the optimizer on the fp32 copies and round the results into the model's weights."""
        kind = type(optimizer)
        # torch wraps the step of a class with hooks; `build` has wrapped this one already.
        plain_step: Any = kind.step
        if getattr(plain_step, "hooked", False):
            plain_step = plain_step.__wrapped__
        first = optimizer.param_groups[0]
        first[_COUNT] = first.get(_COUNT, 0) + 1
        generator = self._make_generator(first[_COUNT])
        others = self._gradients_of_others(optimizer)
        for number, pairs in enumerate(self._buckets()):
            # Weights without fp32 copies take part in the first bucket only, or they would step
            # once per bucket.
            for value, grad in others:
                value.grad = grad if number == 0 else None
            flat = self._copy_to_masters(pairs)
            plain_step(optimizer)
            self._round_from_masters(pairs, flat, generator)
        for value, grad in others:
            value.grad = grad

    def _gradients_of_others(
        self, optimizer: torch.optim.Optimizer
    ) -> list[tuple[nn.Parameter, Tensor]]:
        """Return the weights without fp32 copies, with their gradients (same shape)."""
        masters = {id(pair.high) for pair in self._pairs}
        held = [value for group in optimizer.param_groups for value in group["params"]]
        return [
            (value, value.grad)
            for value in held
            if id(value) not in masters and value.grad is not None
        ]

    def _buckets(self) -> Iterator[list[WeightPair]]:
        """Yield the weights that have gradients, in buckets if the optimizer allows it.

        Yields at least one bucket, because weights without fp32 copies need a step too.
        """
        pairs = [pair for pair in self._pairs if pair.low.grad is not None]
        if self._in_parts and pairs:
            yield from _cut(pairs)
        else:
            yield pairs

    def _copy_to_masters(self, pairs: list[WeightPair]) -> Tensor | None:
        """Fill the gradients of the fp32 copies and, for temporary copies, their values.

        Returns the memory of the temporary values, (K,), or None if there are none.
        """
        passing = [pair for pair in pairs if self._is_temporary(pair)]
        flat = None
        if passing:
            flat, views = _allocate([pair.low for pair in passing])
            _copy_all(views, [pair.low.data for pair in passing])
            for pair, view in zip(passing, views, strict=True):
                pair.high.data = view
        for halves in _cut([pair for pair in pairs if _gradient(pair.low).dtype != torch.float32]):
            _, views = _allocate([pair.low for pair in halves])
            _copy_all(views, [_gradient(pair.low) for pair in halves])
            for pair, view in zip(halves, views, strict=True):
                pair.low.grad, pair.high.grad = None, view
        for pair in pairs:
            if pair.low.grad is not None:
                pair.high.grad, pair.low.grad = pair.low.grad, None
        return flat

    def _round_from_masters(
        self, pairs: list[WeightPair], flat: Tensor | None, generator: torch.Generator
    ) -> None:
        """Round the fp32 copies into the model's weights and free temporary copies.

        flat: (K,), the memory of the temporary copies, or None.
        """
        if flat is not None:
            stochastic_round_(flat, generator)
        halves = [pair for pair in pairs if pair.low.dtype == torch.bfloat16]
        if halves:
            _copy_all([pair.low.data for pair in halves], [pair.high.data for pair in halves])
        for pair in pairs:
            pair.high.grad = None
            if self._is_temporary(pair):
                pair.high.data = _empty(pair.low)

    def _zero_grad(self, optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        """Drop the gradients of the model's weights, too."""
        torch.optim.Optimizer.zero_grad(optimizer, set_to_none=True)
        for pair in self._pairs:
            pair.low.grad = None

    def _make_generator(self, step: int) -> torch.Generator:
        """Return a random generator seeded by seed and step, so that all ranks round alike."""
        # 7 bytes, because manual_seed takes a signed 64-bit number.
        name = f"{self._seed}/{step}/rounding".encode()
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=7).digest(), "big")
        device = self._pairs[0].low.device if self._pairs else torch.device("cpu")
        return torch.Generator(device).manual_seed(seed)


def stochastic_round_(values: Tensor, generator: torch.Generator) -> None:
    """Round fp32 values (K,) stochastically, in place, to one of their two bf16 neighbours.

    A neighbour is the more likely the nearer it is, so the expected result is the value itself:
    16 random bits are added to the low 16 bits that bf16 drops, which are then cleared. Infinity
    and NaN stay as they are.
    """
    count = values.numel()
    # One 64-bit draw gives the noise of four values.
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=values.device)
    words.random_(-(2**63), None, generator=generator)
    noise = words.view(torch.int16)[:count].to(torch.int32).bitwise_and_(0xFFFF)
    bits = values.view(torch.int32)
    bits.add_(noise).bitwise_and_(-0x10000)


def _rounded_weights(model: nn.Module) -> set[int]:
    """Return the ids of weights that are used only by layers that compute in bf16 anyway."""
    rounded, others = set(), set()
    for module in model.modules():
        held = rounded if isinstance(module, _ROUNDED) else others
        held.update(id(value) for value in module.parameters(recurse=False))
    return rounded - others


def _cut(pairs: list[WeightPair]) -> Iterator[list[WeightPair]]:
    """Yield buckets of at most `BUCKET` entries; a single larger weight gets its own."""
    bucket: list[WeightPair] = []
    size = 0
    for pair in pairs:
        if bucket and size + pair.low.numel() > BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(pair)
        size += pair.low.numel()
    if bucket:
        yield bucket


def _allocate(like: list[nn.Parameter]) -> tuple[Tensor, list[Tensor]]:
    """Return an fp32 buffer (K,) and views of it in the shapes of the weights (any shape)."""
    sizes = [-(-value.numel() // _ALIGNED) * _ALIGNED for value in like]
    # Zeros, because the gaps between the weights are rounded with them.
    flat = torch.zeros(sum(sizes), dtype=torch.float32, device=like[0].device)
    parts = zip(flat.split(sizes), like, strict=True)
    return flat, [part[: value.numel()].view(value.shape) for part, value in parts]


def _empty(like: Tensor) -> Tensor:
    """Return an empty fp32 tensor (0,) on the device of a weight of any shape."""
    return torch.empty(0, dtype=torch.float32, device=like.device)


def _gradient(low: nn.Parameter) -> Tensor:
    """Return the gradient of a weight that has one (same shape)."""
    assert low.grad is not None
    return low.grad
