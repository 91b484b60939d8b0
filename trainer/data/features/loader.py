"""Build the padded batches of each step, one step ahead in a background thread."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from trainer.core.errors import DataError
from trainer.core.types import Batch, Features
from trainer.data.features.sampler import (
    Groups,
    assign_to_rank,
    fill_micro_batches,
    pack_epoch,
    plan_epoch,
    split_group,
    split_step,
)

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.core.specs import Draw

_TURN = "\0"
"""Separates a clip's id from its repeat number, for clips that occur several times per epoch."""


@dataclass(frozen=True)
class BatchPlan:
    """How clips are batched: `accumulate` micro-batches of `batch_size` clips per step and rank.

    With `max_positions`, a micro-batch holds as many clips as fit into that many positions,
    padding included, instead of `batch_size`. Without `shuffle`, an epoch is sorted by length.
    """

    batch_size: int
    accumulate: int
    world_size: int
    rank: int
    seed: int
    shuffle: bool
    max_positions: int = 0

    @property
    def group_count(self) -> int:
        """Micro-batches per step, over all ranks."""
        return self.accumulate * self.world_size


class ClipBatches:
    """The batches of one split.

    A batch depends only on the step number, so a resume can start at any step. `draw` replaces
    the features of a clip at every step. `repeats` is how often a clip occurs per epoch
    (default 1).
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
            raise DataError("No usable clips are left. Check the ledger on the Data tab.")
        self._plan = plan
        self._features = features
        self._collate = collate
        self._audio_s = audio_s
        self._draw = draw
        self._pin_memory = pin_memory
        self._counts = {clip_id: counts(found) for clip_id, found in features.items()}
        # The first count of a family is the length that decides how much padding a clip needs.
        self._lengths = {
            clip_id: next(iter(found.values()), 1.0) for clip_id, found in self._counts.items()
        }
        self._turns = {
            f"{clip_id}{_TURN}{turn}" if turn else clip_id: length
            for clip_id, length in self._lengths.items()
            for turn in range((repeats or {}).get(clip_id, 1))
        }
        longest = max(self._lengths.values())
        # A micro-batch holds at least one clip, even if that exceeds the budget.
        if 0 < plan.max_positions < longest:
            raise DataError(
                f"The longest clip has {longest:.0f} positions, but the token budget of a "
                f"micro-batch is {plan.max_positions}. Raise the budget to at least {longest:.0f}, "
                "or lower the longest clip on the Data tab."
            )
        # Two epochs, because the step that is built ahead may belong to the next one.
        self._epoch = lru_cache(maxsize=2)(self._plan_epoch)
        self.steps_per_epoch = len(self._epoch(0))
        self.num_clips = len(features)
        self.waited_s = 0.0
        self._parts = 1
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._made: dict[int, Future[list[Batch]]] = {}

    def micro_batches(self, step: int) -> list[Batch]:
        """Return this rank's micro-batches of a step (from 1) and start building the next step's.

        Without shuffling (validation), nothing is built ahead: the next use may be far away.
        """
        asked_at = time.monotonic()
        wanted = (step, step + 1) if self._plan.shuffle else (step,)
        # Other steps are dropped, so no more than two steps of batches are in memory.
        self._made = {
            each: self._made.get(each) or self._pool.submit(self._make, each) for each in wanted
        }
        batches = self._made[step].result()
        if not self._plan.shuffle:
            self._made.clear()
        self.waited_s += time.monotonic() - asked_at
        return batches

    def audio_s_of_step(self, step: int) -> float:
        """Return the seconds of audio in a step, over all ranks and micro-batches."""
        return sum(self._audio_s[clip_id] for clip_id in self.clip_ids(step))

    def clip_ids(self, step: int) -> list[str]:
        """Return the clip ids of a whole step, over all ranks and micro-batches."""
        return [clip_id for group in self._groups(step) for clip_id in group]

    def max_clips(self) -> int:
        """Return the number of clips in the largest micro-batch of an epoch, before splitting."""
        return max(len(group) for groups in self._epoch(0) for group in groups)

    def largest(self) -> Batch:
        """Return the batch with the most positions, padding included, to measure peak memory."""
        found = [
            (len(piece) * max(self._lengths[clip_id] for clip_id in piece), step, piece)
            # The first epoch stands for all: the same clips in slightly different batches.
            for step, groups in enumerate(self._epoch(0), start=1)
            for group in groups
            for piece in split_group(group, self._parts)
        ]
        _, step, piece = max(found)
        return self._batch(piece, self._totals(self.clip_ids(step)), step)

    def split_micro_batches(self, parts: int) -> None:
        """Split every micro-batch into this many parts from now on, with at least one clip each.

        Losses are divided by the totals of the whole step, so the gradients do not change.
        """
        self._parts = parts
        # Batches built ahead still have the old size.
        self._made.clear()

    def close(self) -> None:
        """Stop the background thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _groups(self, step: int) -> Groups:
        return self._epoch((step - 1) // self.steps_per_epoch)[(step - 1) % self.steps_per_epoch]

    def _plan_epoch(self, epoch: int) -> list[Groups]:
        plan, turns = self._plan, self._turns
        if not plan.max_positions:
            size = plan.batch_size * plan.group_count
            planned = plan_epoch(
                turns, step_size=size, seed=plan.seed, epoch=epoch, shuffle=plan.shuffle
            )
            return [
                split_step(
                    [_clip_id(turn) for turn in step],
                    self._lengths,
                    batch_size=plan.batch_size,
                    world_size=plan.world_size,
                )
                for step in planned
            ]
        if not plan.shuffle:
            # Longest first, so that a batch that does not fit fails at the start of validation.
            order = sorted(turns, key=lambda turn: (-turns[turn], turn))
            return [fill_micro_batches(order, turns, plan.max_positions)]
        packed = pack_epoch(
            turns,
            max_positions=plan.max_positions,
            group_count=plan.group_count,
            seed=plan.seed,
            epoch=epoch,
        )
        return [[[_clip_id(turn) for turn in group] for group in step] for step in packed]

    def _make(self, step: int) -> list[Batch]:
        groups = self._groups(step)
        # Over all ranks and micro-batches, because losses are divided by the whole step.
        totals = self._totals([clip_id for group in groups for clip_id in group])
        mine = assign_to_rank(groups, world_size=self._plan.world_size, rank=self._plan.rank)
        pieces = [piece for group in mine for piece in split_group(group, self._parts)]
        return [self._batch(piece, totals, step) for piece in pieces]

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
            # Pinned, so that the copy to the GPU runs beside its computations.
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return Batch(tensors, list(ids), totals, sum(self._audio_s[clip_id] for clip_id in ids))

    def _features_of(self, clip_id: str, step: int) -> Features:
        """Return a clip's features for a step; random draws depend on seed, step and clip only."""
        if self._draw is None:
            return self._features[clip_id]
        names = (f"{self._plan.seed}/{step}", f"{self._plan.seed}/{step}/{clip_id}")
        # Not hash(), whose results differ between processes and would change a resumed run.
        seeds = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
        of_step, of_clip = (np.random.default_rng(int.from_bytes(seed, "big")) for seed in seeds)
        return self._draw(clip_id, of_step, of_clip)


def _clip_id(turn: str) -> str:
    return turn.partition(_TURN)[0]
