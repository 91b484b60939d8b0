"""Batching: which clips make up each step, and the padded batches of a step.

The plan of an epoch is a pure function of the clips, the seed and the epoch, so a step's batches
depend on nothing but its number, and neither the count of devices nor of workers changes which
clips a step holds.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from trainer.data.types import Batch, Features
from trainer.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.specs import Draw

_JITTER = 0.2
_TURN = "\0"
"""Parts a clip's id from the number of its turn, for clips that come more than once an epoch."""


@dataclass(frozen=True)
class BatchPlan:
    """How clips are dealt out: `batch_size` clips a micro-step, `accumulate` of these, by rank."""

    batch_size: int
    accumulate: int
    world_size: int
    rank: int
    seed: int
    shuffle: bool

    @property
    def step_size(self) -> int:
        """Clips in one step: all micro-steps of all ranks."""
        return self.batch_size * self.accumulate * self.world_size


def plan_epoch(
    lengths: Mapping[str, float], *, step_size: int, seed: int, epoch: int, shuffle: bool
) -> list[list[str]]:
    """Deal every clip into exactly one step of an epoch.

    Steps hold clips of similar length, which saves padding; lengths are blurred by 10 % first, so
    that steps differ from epoch to epoch. The last step takes what is left over.
    """
    places = {clip_id: _places(clip_id, seed, epoch) for clip_id in lengths}
    if not shuffle:
        order = sorted(lengths, key=lambda clip_id: (-lengths[clip_id], clip_id))
        return [order[start : start + step_size] for start in range(0, len(order), step_size)]
    shuffled = sorted(lengths, key=lambda clip_id: (places[clip_id][0], clip_id))
    whole = len(shuffled) - len(shuffled) % step_size

    def blurred(clip_id: str) -> tuple[float, str]:
        return lengths[clip_id] * (1 + _JITTER * (places[clip_id][1] - 0.5)), clip_id

    order = sorted(shuffled[:whole], key=blurred)
    steps = [order[start : start + step_size] for start in range(0, whole, step_size)]
    steps.sort(key=lambda step: places[step[0]][0])
    rest = sorted(shuffled[whole:], key=blurred)
    return [*steps, rest] if rest else steps


def split_step(
    ids: Sequence[str],
    lengths: Mapping[str, float],
    batch_size: int,
    world_size: int,
    rank: int,
) -> list[list[str]]:
    """Return the micro-batches of a rank: the ranks together hold every clip of a step once.

    Micro-batches hold neighbours in length, differ by one clip at most, and are dealt so that ranks
    carry similar loads. A rank is left without any only where there are fewer clips than ranks.
    """
    ordered = sorted(ids, key=lambda clip_id: (-lengths[clip_id], clip_id))
    rounds = math.ceil(len(ordered) / (world_size * batch_size))
    count = min(len(ordered), rounds * world_size)
    edges = [len(ordered) * part // count for part in range(count + 1)] if count else [0]
    groups = [ordered[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    mine = []
    for turn in range(0, len(groups), world_size):
        row = groups[turn : turn + world_size]
        # Every other round runs backwards: who got the longest clips gets the shortest next.
        seat = rank if turn // world_size % 2 == 0 else world_size - 1 - rank
        if seat < len(row):
            mine.append(row[seat])
    return mine


class ClipBatches:
    """The batches of one split; position is the step's number, so any step can be asked for.

    `draw` replaces the features of a clip, anew at every step. `repeats` says how often a clip
    comes in an epoch; once, if it is not named.
    """

    def __init__(
        self,
        plan: BatchPlan,
        features: Mapping[str, Features],
        counts: Callable[[Features], dict[str, float]],
        collate: "Callable[[Sequence[Features]], dict[str, Tensor]]",
        *,
        audio_s: Mapping[str, float],
        draw: "Draw | None" = None,
        repeats: Mapping[str, int] | None = None,
        pin_memory: bool = False,
    ) -> None:
        if not features:
            raise DataError("There are no clips to make batches of. Check the ledger under Data.")
        self._plan = plan
        self._features = features
        self._collate = collate
        self._audio_s = audio_s
        self._draw = draw
        self._pin_memory = pin_memory
        self._counts = {clip_id: counts(found) for clip_id, found in features.items()}
        self._lengths = {
            clip_id: next(iter(found.values()), 1.0) for clip_id, found in self._counts.items()
        }
        self._turns = {
            f"{clip_id}{_TURN}{turn}" if turn else clip_id: length
            for clip_id, length in self._lengths.items()
            for turn in range((repeats or {}).get(clip_id, 1))
        }
        self.steps_per_epoch = math.ceil(len(self._turns) / plan.step_size)
        self.num_clips = len(features)
        self.waited_s = 0.0
        self._epoch = lru_cache(maxsize=2)(self._plan_epoch)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._ahead: tuple[int, Future[list[Batch]]] | None = None

    def of_step(self, step: int) -> list[Batch]:
        """Return this rank's micro-batches of a step (from 1) and begin on the next step's."""
        asked_at = time.monotonic()
        if self._ahead is not None and self._ahead[0] == step:
            batches = self._ahead[1].result()
        else:
            batches = self._pool.submit(self._make, step).result()
        self._ahead = (step + 1, self._pool.submit(self._make, step + 1))
        self.waited_s += time.monotonic() - asked_at
        return batches

    def audio_s_of_step(self, step: int) -> float:
        """Return the seconds of audio in a step, over all ranks and micro-steps."""
        return sum(self._audio_s[clip_id] for clip_id in self.clip_ids(step))

    def clip_ids(self, step: int) -> list[str]:
        """Return the clips of a whole step, over all ranks and micro-steps."""
        turns = self._epoch((step - 1) // self.steps_per_epoch)[(step - 1) % self.steps_per_epoch]
        return [turn.partition(_TURN)[0] for turn in turns]

    def close(self) -> None:
        """End the background thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _plan_epoch(self, epoch: int) -> list[list[str]]:
        plan = self._plan
        return plan_epoch(
            self._turns,
            step_size=plan.step_size,
            seed=plan.seed,
            epoch=epoch,
            shuffle=plan.shuffle,
        )

    def _make(self, step: int) -> list[Batch]:
        ids = self.clip_ids(step)
        totals = self._totals(ids)
        plan = self._plan
        parts = split_step(ids, self._lengths, plan.batch_size, plan.world_size, plan.rank)
        return [self._batch(part, totals, step) for part in parts]

    def _totals(self, ids: Sequence[str]) -> dict[str, float]:
        totals = {"clips": float(len(ids))}
        for clip_id in ids:
            for name, count in self._counts[clip_id].items():
                if name != "clips":
                    totals[name] = totals.get(name, 0.0) + count
        return totals

    def _batch(self, ids: list[str], totals: dict[str, float], step: int) -> Batch:
        tensors = self._collate([self._features_of(clip_id, step) for clip_id in ids])
        if self._pin_memory:
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return Batch(tensors, list(ids), totals, sum(self._audio_s[clip_id] for clip_id in ids))

    def _features_of(self, clip_id: str, step: int) -> Features:
        """Return what a clip brings to a step: a function of the seed, the step and the clip."""
        if self._draw is None:
            return self._features[clip_id]
        names = (f"{self._plan.seed}/{step}", f"{self._plan.seed}/{step}/{clip_id}")
        seeds = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
        of_step, of_clip = (np.random.default_rng(int.from_bytes(seed, "big")) for seed in seeds)
        return self._draw(clip_id, of_step, of_clip)


def _places(clip_id: str, seed: int, epoch: int) -> tuple[float, float]:
    """Return two numbers in 0..1 that look random; the same on every machine and version."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{clip_id}".encode(), digest_size=16).digest()
    first, second = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
    return first / 2**64, second / 2**64
