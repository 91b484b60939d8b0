"""Choose the clips of each step of an epoch, and split a step into micro-batches.

Everything is a pure function of the clips, the seed and the epoch. So a step depends only on its
number, and the number of devices or workers does not change its clips.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

_JITTER = 0.07  # Lengths vary by +-3.5 %; chosen by hand: more mixes better but pads more.
_SLACK = 1.02
"""Micro-batches of an epoch, relative to a sorted order: a jittered order needs a few more."""

Groups = list[list[str]]
"""The micro-batches of a step, over all ranks."""


def plan_epoch(
    lengths: Mapping[str, float], *, step_size: int, seed: int, epoch: int, shuffle: bool
) -> list[list[str]]:
    """Assign every clip to exactly one step of an epoch.

    A step has clips of similar length, to reduce padding. Lengths are jittered by up to 3.5 %
    first, so that steps differ between epochs. The last step takes the remainder.
    """
    if not shuffle:
        order = sorted(lengths, key=lambda clip_id: (-lengths[clip_id], clip_id))
        return [order[start : start + step_size] for start in range(0, len(order), step_size)]
    places = {clip_id: _places(clip_id, seed, epoch) for clip_id in lengths}
    order = sorted(lengths, key=_jittered(lengths, places, _JITTER))
    # The remainder is a run of neighbors at a random place, so that it too needs little padding.
    left = len(order) % step_size
    first = int(_places("", seed, epoch)[0] * (len(order) - left + 1))
    order, rest = order[:first] + order[first + left :], order[first : first + left]
    steps = [order[start : start + step_size] for start in range(0, len(order), step_size)]
    # Without this every epoch would go from the shortest clips to the longest.
    steps.sort(key=lambda step: places[step[0]][0])
    return [*steps, rest] if rest else steps


def pack_epoch(
    lengths: Mapping[str, float], *, max_positions: int, group_count: int, seed: int, epoch: int
) -> list[Groups]:
    """Assign every clip to exactly one micro-batch of at most `max_positions`, with padding.

    A step is `group_count` micro-batches of similar lengths. Every epoch has the same number of
    steps: if a jittered order needs too many micro-batches, the jitter is reduced.
    """
    places = {clip_id: _places(clip_id, seed, epoch) for clip_id in lengths}
    wanted = count_packed(lengths, max_positions=max_positions, group_count=group_count)
    jitter = _JITTER
    groups = fill_micro_batches(
        sorted(lengths, key=_jittered(lengths, places, jitter)), lengths, max_positions
    )
    while len(groups) > wanted:
        # Ends at 0: that order is the sorted one, whose micro-batches have been counted.
        jitter = jitter / 2 if jitter > 0.01 else 0.0
        order = sorted(lengths, key=_jittered(lengths, places, jitter))
        groups = fill_micro_batches(order, lengths, max_positions)
    # Halving a group never adds padding.
    while len(groups) < wanted:
        groups = _halve_largest(groups, wanted - len(groups))
    steps = [groups[start : start + group_count] for start in range(0, wanted, group_count)]
    return sorted(steps, key=lambda step: places[step[0][0]][0])


def count_packed(lengths: Mapping[str, float], *, max_positions: int, group_count: int) -> int:
    """Return the number of micro-batches in every epoch of `pack_epoch`."""
    needed = len(
        fill_micro_batches(sorted(lengths, key=lambda i: (lengths[i], i)), lengths, max_positions)
    )
    whole_steps = math.ceil(needed * _SLACK / group_count)
    return min(whole_steps * group_count, len(lengths))


def fill_micro_batches(
    order: Sequence[str], lengths: Mapping[str, float], max_positions: int
) -> Groups:
    """Split an order into groups of as many clips as fit when padded to the longest."""
    groups: Groups = []
    longest = 0.0
    for clip_id in order:
        longest = max(longest, lengths[clip_id])
        if groups and (len(groups[-1]) + 1) * longest <= max_positions:
            groups[-1].append(clip_id)
        else:
            groups.append([clip_id])
            longest = lengths[clip_id]
    return groups


def _halve_largest(groups: Groups, count: int) -> Groups:
    """Return the groups, in order, with up to `count` of the largest split in half."""
    by_size = sorted(range(len(groups)), key=lambda at: -len(groups[at]))
    chosen = {at for at in by_size[:count] if len(groups[at]) > 1}
    halved: Groups = []
    for at, group in enumerate(groups):
        half = len(group) // 2 if at in chosen else 0
        halved += [group[:half], group[half:]] if half else [group]
    return halved


def split_step(
    ids: Sequence[str], lengths: Mapping[str, float], *, batch_size: int, world_size: int
) -> Groups:
    """Split a step into micro-batches of similar length, whose sizes differ by at most one."""
    ordered = sorted(ids, key=lambda clip_id: (-lengths[clip_id], clip_id))
    rounds = math.ceil(len(ordered) / (world_size * batch_size))
    # A multiple of the ranks, so that no rank waits for the others without work.
    count = min(len(ordered), rounds * world_size)
    edges = [len(ordered) * part // count for part in range(count + 1)] if count else [0]
    return [ordered[start:end] for start, end in zip(edges, edges[1:], strict=False)]


def split_group(group: Sequence[str], parts: int) -> Groups:
    """Split a micro-batch into non-empty parts whose sizes differ by at most one."""
    count = min(parts, len(group))
    edges = [len(group) * part // count for part in range(count + 1)]
    return [list(group[start:end]) for start, end in zip(edges, edges[1:], strict=False)]


def assign_to_rank(groups: Groups, *, world_size: int, rank: int) -> Groups:
    """Return the micro-batches of a rank, so that the ranks have similar loads.

    Every micro-batch goes to exactly one rank. A rank gets none only if there are fewer
    micro-batches than ranks.
    """
    mine = []
    for turn in range(0, len(groups), world_size):
        row = groups[turn : turn + world_size]
        # Alternate the direction: the rank with the longest clips gets the shortest ones next.
        seat = rank if turn // world_size % 2 == 0 else world_size - 1 - rank
        if seat < len(row):
            mine.append(row[seat])
    return mine


def _jittered(
    lengths: Mapping[str, float], places: Mapping[str, tuple[float, float]], jitter: float
) -> Callable[[str], tuple[float, str]]:
    """Return a sort key: the clip's length, varied at random by up to half of `jitter`."""

    def key(clip_id: str) -> tuple[float, str]:
        return lengths[clip_id] * (1 + jitter * (places[clip_id][1] - 0.5)), clip_id

    return key


def _places(clip_id: str, seed: int, epoch: int) -> tuple[float, float]:
    """Return two pseudo-random numbers in 0..1 that are the same on every machine and version."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{clip_id}".encode(), digest_size=16).digest()
    first, second = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
    return first / 2**64, second / 2**64
