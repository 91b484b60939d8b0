"""An epoch is every clip exactly once, and the step alone decides what is in it."""

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from trainer.core.errors import DataError
from trainer.core.train_state import StepBatches
from trainer.core.types import Clip, Features
from trainer.data.features.balance import count_repeats
from trainer.data.features.loader import BatchPlan, ClipBatches
from trainer.data.features.sampler import (
    assign_to_rank,
    count_packed,
    pack_epoch,
    plan_epoch,
    split_step,
)


def make_lengths(count: int) -> dict[str, float]:
    rng = np.random.default_rng(count)
    return {f"c{i:04d}": float(length) for i, length in enumerate(rng.lognormal(6, 0.5, count))}


def make_features(count: int) -> dict[str, Features]:
    return {f"c{i:02d}": {"mel": np.full(5 + i % 7, i, np.float32)} for i in range(count)}


def count_frames(features: Features) -> dict[str, float]:
    return {"frames": float(len(features["mel"])), "tokens": 2.0}


def collate(group: Sequence[Features]) -> dict[str, torch.Tensor]:
    rows = [torch.from_numpy(features["mel"]) for features in group]
    return {"mel": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1.0)}


def make_batches(count: int = 10, plan: BatchPlan | None = None) -> ClipBatches:
    features = make_features(count)
    audio_s = {clip_id: 0.5 for clip_id in features}
    plan = plan or BatchPlan(4, 1, 1, 0, 7, True)
    return ClipBatches(plan, features, count_frames, collate, audio_s=audio_s)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("count", "step_size"), [(1, 4), (16, 4), (103, 8), (7, 16)])
def test_an_epoch_holds_every_clip_exactly_once(count: int, step_size: int, shuffle: bool) -> None:
    lengths = make_lengths(count)

    steps = plan_epoch(lengths, step_size=step_size, seed=1, epoch=3, shuffle=shuffle)

    assert Counter(clip_id for step in steps for clip_id in step) == Counter(list(lengths))
    assert [len(step) for step in steps[:-1]] == [step_size] * (len(steps) - 1)
    assert 1 <= len(steps[-1]) <= step_size


def test_the_order_follows_seed_and_epoch_and_nothing_else() -> None:
    lengths = make_lengths(64)
    backwards = dict(reversed(lengths.items()))

    def plan(clips: dict[str, float], seed: int, epoch: int) -> list[list[str]]:
        return plan_epoch(clips, step_size=8, seed=seed, epoch=epoch, shuffle=True)

    assert plan(lengths, 1, 0) == plan(backwards, 1, 0)
    assert plan(lengths, 1, 0) != plan(lengths, 1, 1)
    assert plan(lengths, 1, 0) != plan(lengths, 2, 0)


def test_the_order_is_the_one_it_has_always_been() -> None:
    # A run resumed by a later version must see the same clips; this line may never change.
    steps = plan_epoch(
        {f"c{i}": float(10 + i) for i in range(7)}, step_size=3, seed=5, epoch=2, shuffle=True
    )

    assert steps == [["c3", "c4", "c5"], ["c0", "c1", "c2"], ["c6"]]


def padded_share(lengths: dict[str, float], groups: list[list[str]]) -> float:
    """Return padded positions over real ones."""
    padded = sum(max(lengths[i] for i in group) * len(group) for group in groups)
    return padded / sum(lengths.values())


def pairs_of(steps: list[list[str]]) -> set[tuple[str, str]]:
    """Return which clips share a step."""
    return {(a, b) for step in steps for a in step for b in step if a < b}


def draw_lengths(kind: str, count: int) -> dict[str, float]:
    """Return XTTS positions of made-up corpora: the voice's 32, and 27.5 a second of speech."""
    rng = np.random.default_rng(count)
    seconds = {
        "sentences": rng.lognormal(np.log(4.6), 0.55, count).clip(0.5, 11.6),
        "read aloud": rng.normal(6.6, 2.2, count).clip(1.1, 10.1),
        "long": rng.lognormal(np.log(9.2), 0.3, count).clip(1.0, 11.6),
    }[kind]
    return {f"c{i:05d}": float(round(32 + 27.5 * value)) for i, value in enumerate(seconds)}


@pytest.mark.parametrize("count", [500, 803, 5000])
@pytest.mark.parametrize(
    ("kind", "unsorted"), [("sentences", 1.5), ("read aloud", 1.3), ("long", 1.15)]
)
def test_a_twentieth_is_padding_at_most(kind: str, unsorted: float, count: int) -> None:
    lengths = draw_lengths(kind, count)
    ids = list(lengths)

    shares = [
        padded_share(lengths, plan_epoch(lengths, step_size=8, seed=1, epoch=e, shuffle=True))
        for e in range(4)
    ]

    assert max(shares) <= 1.05
    assert padded_share(lengths, [ids[at : at + 8] for at in range(0, count, 8)]) > unsorted


def test_the_demo_corpus_is_padded_little() -> None:
    paths = (Path(__file__).parent.parent.parent / "assets" / "demo" / "clips").rglob("*.*")
    frames = {path.name: soundfile.info(str(path)).duration * 22050 / 256 for path in paths}

    shares = [
        padded_share(frames, plan_epoch(frames, step_size=8, seed=1, epoch=e, shuffle=True))
        for e in range(4)
    ]

    assert len(frames) > 150
    assert max(shares) <= 1.05


def test_buckets_mix_from_epoch_to_epoch_and_come_in_any_order_of_length() -> None:
    lengths = draw_lengths("sentences", 800)

    epochs = [plan_epoch(lengths, step_size=8, seed=1, epoch=e, shuffle=True) for e in (0, 1)]
    shared = {frozenset(step) for step in epochs[0]} & {frozenset(step) for step in epochs[1]}
    again = pairs_of(epochs[0]) & pairs_of(epochs[1])
    longest = [max(lengths[clip_id] for clip_id in step) for step in epochs[0]]

    assert len(shared) <= 1
    assert len(again) < 0.25 * len(pairs_of(epochs[0]))
    assert abs(np.corrcoef(longest, range(len(longest)))[0, 1]) < 0.3


@pytest.mark.parametrize("group_count", [1, 4])
@pytest.mark.parametrize("count", [3, 50, 803])
def test_a_token_budget_holds_for_every_micro_batch_and_loses_no_clip(
    count: int, group_count: int
) -> None:
    lengths = draw_lengths("sentences", count)
    budget = {"max_positions": 2000, "group_count": group_count}

    epochs = [pack_epoch(lengths, **budget, seed=1, epoch=epoch) for epoch in range(6)]

    wanted = count_packed(lengths, **budget)
    for steps in epochs:
        groups = [group for step in steps for group in step]
        assert Counter(clip_id for group in groups for clip_id in group) == Counter(list(lengths))
        assert max(len(group) * max(lengths[i] for i in group) for group in groups) <= 2000
        assert len(groups) == wanted
        assert [len(step) for step in steps].count(group_count) >= len(steps) - 1


def test_a_token_budget_is_nearly_used_up_and_mixes_clips() -> None:
    lengths = draw_lengths("sentences", 800)
    budget = {"max_positions": 3500, "group_count": 1}

    epochs = [pack_epoch(lengths, **budget, seed=1, epoch=epoch) for epoch in range(2)]

    groups = [[group for step in steps for group in step] for steps in epochs]
    again = pairs_of(groups[0]) & pairs_of(groups[1])
    assert padded_share(lengths, groups[0]) <= 1.05
    assert sum(lengths.values()) / len(groups[0]) > 0.85 * 3500
    assert len(again) < 0.5 * len(pairs_of(groups[0]))
    assert groups == [
        [group for step in pack_epoch(lengths, **budget, seed=1, epoch=e) for group in step]
        for e in range(2)
    ]


def test_batches_keep_to_a_token_budget_and_ranks_share_them() -> None:
    ranks = [
        make_batches(40, BatchPlan(8, 2, 2, rank, 7, True, max_positions=30)) for rank in (0, 1)
    ]

    steps = range(1, ranks[0].steps_per_epoch + 1)
    found = [batch for step in steps for rank in ranks for batch in rank.micro_batches(step)]
    for rank in ranks:
        rank.close()

    assert Counter(i for b in found for i in b.clip_ids) == Counter(list(make_features(40)))
    assert max(batch["mel"].numel() for batch in found) <= 30


def test_validation_within_a_token_budget_is_one_step() -> None:
    batches = make_batches(40, BatchPlan(8, 1, 1, 0, 7, False, max_positions=30))

    found = batches.micro_batches(1)
    batches.close()

    assert batches.steps_per_epoch == 1
    assert Counter(i for b in found for i in b.clip_ids) == Counter(list(make_features(40)))
    assert max(batch["mel"].numel() for batch in found) <= 30


def test_a_clip_longer_than_the_token_budget_is_a_sentence() -> None:
    with pytest.raises(DataError, match="longest clip has 11 positions.*at least 11"):
        make_batches(10, BatchPlan(8, 1, 1, 0, 7, True, max_positions=10))


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize(("count", "batch_size"), [(1, 4), (5, 1), (16, 4), (23, 4), (64, 8)])
def test_ranks_together_hold_a_step_once_and_share_the_load(
    count: int, batch_size: int, world_size: int
) -> None:
    lengths = make_lengths(count)

    ranks = [
        assign_to_rank(
            split_step(list(lengths), lengths, batch_size=batch_size, world_size=world_size),
            world_size=world_size,
            rank=rank,
        )
        for rank in range(world_size)
    ]

    held = [clip_id for batches in ranks for batch in batches for clip_id in batch]
    sizes = [len(batch) for batches in ranks for batch in batches]
    micro_steps = [len(batches) for batches in ranks]
    assert Counter(held) == Counter(list(lengths))
    assert max(sizes) <= batch_size and max(sizes) - min(sizes) <= 1
    assert max(micro_steps) - min(micro_steps) <= 1
    assert (0 in micro_steps) == (count < world_size)


def test_loads_of_ranks_are_alike() -> None:
    lengths = make_lengths(64)
    groups = split_step(list(lengths), lengths, batch_size=4, world_size=2)

    loads = [
        sum(lengths[i] for batch in assign_to_rank(groups, world_size=2, rank=rank) for i in batch)
        for rank in range(2)
    ]

    assert max(loads) / min(loads) < 1.1


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "world_size"), [(8, 1, 1), (4, 2, 1), (2, 2, 2), (1, 2, 4)]
)
def test_every_topology_sees_the_same_clips_and_totals_at_every_step(
    batch_size: int, accumulate: int, world_size: int
) -> None:
    alone = make_batches(20, BatchPlan(8, 1, 1, 0, 7, True))
    ranks = [
        make_batches(20, BatchPlan(batch_size, accumulate, world_size, rank, 7, True))
        for rank in range(world_size)
    ]

    for step in range(1, 8):
        expected = alone.micro_batches(step)
        found = [batch for rank in ranks for batch in rank.micro_batches(step)]
        assert sorted(i for batch in found for i in batch.clip_ids) == sorted(
            i for batch in expected for i in batch.clip_ids
        )
        assert all(batch.totals == expected[0].totals for batch in found)
        assert max(len(batch.clip_ids) for batch in found) <= batch_size
    for batches in [alone, *ranks]:
        batches.close()


def test_a_batch_holds_what_its_clips_hold() -> None:
    batches = make_batches(10)

    for step in range(1, 4):
        batch = batches.micro_batches(step)[0]
        for row, clip_id in zip(batch["mel"], batch.clip_ids, strict=True):
            number = int(clip_id[1:])
            assert row[row >= 0].tolist() == [float(number)] * (5 + number % 7)
        assert batch.audio_s == 0.5 * len(batch.clip_ids)
        assert batch.totals == {
            "clips": float(len(batch.clip_ids)),
            "frames": float((batch["mel"] >= 0).sum()),
            "tokens": 2.0 * len(batch.clip_ids),
        }
    batches.close()


def test_any_step_can_be_asked_for_in_any_order() -> None:
    onward, astray = make_batches(), make_batches()
    expected = {step: onward.micro_batches(step)[0] for step in range(1, 10)}

    for step in (9, 2, 2, 3, 7, 1):
        found = astray.micro_batches(step)[0]
        assert found.clip_ids == expected[step].clip_ids
        assert torch.equal(found["mel"], expected[step]["mel"])
    onward.close()
    astray.close()


def test_three_epochs_show_every_clip_three_times() -> None:
    batches = make_batches(10)
    assert batches.steps_per_epoch == 3

    seen = Counter(
        i for step in range(1, 10) for b in batches.micro_batches(step) for i in b.clip_ids
    )

    assert seen == Counter({f"c{i:02d}": 3 for i in range(10)})
    batches.close()


def test_the_next_step_is_made_in_the_background_before_it_is_asked_for() -> None:
    made = []
    second_made = threading.Event()

    def collate_noting(group: Sequence[Features]) -> dict[str, torch.Tensor]:
        made.append(threading.current_thread())
        if len(made) == 2:
            second_made.set()
        return collate(group)

    features = make_features(8)
    batches = ClipBatches(
        BatchPlan(4, 1, 1, 0, 7, True), features, count_frames, collate_noting,
        audio_s=dict.fromkeys(features, 1.0),
    )  # fmt: skip

    batches.micro_batches(1)

    assert second_made.wait(timeout=120)
    assert threading.main_thread() not in made
    batches.close()
    assert not any(thread.is_alive() for thread in made)


def make_noting(shuffle: bool) -> tuple[ClipBatches, list[int]]:
    """Return batches of 8 clips in 2 steps, and a list that grows by one a collated batch."""
    made: list[int] = []

    def collate_noting(group: Sequence[Features]) -> dict[str, torch.Tensor]:
        made.append(len(group))
        return collate(group)

    features = make_features(8)
    plan = BatchPlan(4, 1 if shuffle else 2, 1, 0, 7, shuffle)
    audio_s = dict.fromkeys(features, 1.0)
    return ClipBatches(plan, features, count_frames, collate_noting, audio_s=audio_s), made


def test_no_batch_is_made_twice_even_if_the_first_step_is_looked_at_before() -> None:
    batches, made = make_noting(shuffle=True)

    batches.micro_batches(1)
    for step in range(1, 6):
        batches.micro_batches(step)
    batches.close()

    assert len(made) in (5, 6)


def test_a_validation_makes_its_batches_once_and_keeps_none() -> None:
    batches, made = make_noting(shuffle=False)

    for _ in range(3):
        batches.micro_batches(1)
    batches.close()

    assert made == 3 * [4, 4]


def test_moving_a_batch_reads_nothing_back_and_waits_for_nothing() -> None:
    """Pinned tensors are copied without waiting; on the CPU nothing is copied at all."""
    batches, _ = make_noting(shuffle=True)
    asked = []

    class Watch(torch.Tensor):
        def to(self, device: torch.device, *, non_blocking: bool) -> torch.Tensor:  # type: ignore[override]
            asked.append(non_blocking)
            return torch.Tensor.to(self, device)

    batch = batches.micro_batches(1)[0]
    batches.close()
    moved = batch.to(torch.device("cpu"))
    batch.tensors["mel"] = batch["mel"].as_subclass(Watch)
    batch.to(torch.device("cpu"))

    assert moved["mel"].data_ptr() == batch["mel"].data_ptr()
    assert asked == [True]


def test_an_error_while_collating_reaches_the_caller() -> None:
    def fail_on_five(group: Sequence[Features]) -> dict[str, torch.Tensor]:
        if any(features["mel"][0] == 5 for features in group):
            raise ValueError("clip five")
        return collate(group)

    features = make_features(8)
    batches = ClipBatches(
        BatchPlan(4, 1, 1, 0, 7, False), features, count_frames, fail_on_five,
        audio_s=dict.fromkeys(features, 1.0),
    )  # fmt: skip

    with pytest.raises(ValueError, match="clip five"):
        for step in (1, 2):
            batches.micro_batches(step)
    batches.close()


def test_a_rank_without_clips_gets_no_batch() -> None:
    batches = make_batches(1, BatchPlan(4, 1, 2, 1, 7, True))

    assert batches.micro_batches(1) == []
    batches.close()


def test_no_clips_is_a_sentence() -> None:
    with pytest.raises(DataError, match="No usable clips"):
        ClipBatches(BatchPlan(4, 1, 1, 0, 7, True), {}, count_frames, collate, audio_s={})


def test_clip_batches_are_what_the_loop_expects() -> None:
    batches: StepBatches = make_batches()

    assert batches.steps_per_epoch == 3
    batches.close()


def test_what_is_drawn_depends_on_the_step_and_the_clip_alone() -> None:
    features = make_features(6)

    def draw(clip_id: str, of_step: np.random.Generator, rng: np.random.Generator) -> Features:
        shared = of_step.integers(0, 1000) * 1_000_000
        return features[clip_id] | {"drawn": shared + rng.integers(0, 1_000_000, 1)}

    def collate_drawn(group: Sequence[Features]) -> dict[str, torch.Tensor]:
        return {"drawn": torch.from_numpy(np.concatenate([clip["drawn"] for clip in group]))}

    def drawn(plan: BatchPlan, step: int) -> dict[str, int]:
        audio_s = dict.fromkeys(features, 0.5)
        batches = ClipBatches(
            plan, features, count_frames, collate_drawn, audio_s=audio_s, draw=draw
        )
        made = batches.micro_batches(step)
        batches.close()
        pairs = [(b.clip_ids[row], int(v)) for b in made for row, v in enumerate(b["drawn"])]
        return dict(pairs)

    whole, parts = BatchPlan(6, 1, 1, 0, 7, True), BatchPlan(2, 3, 1, 0, 7, True)

    assert drawn(whole, 1) == drawn(parts, 1)
    assert drawn(whole, 1) != drawn(whole, 2)
    values = drawn(whole, 1).values()
    assert len(set(values)) == 6
    assert len({value // 1_000_000 for value in values}) == 1


def test_clips_come_as_often_as_they_are_repeated() -> None:
    features = make_features(5)
    plan = BatchPlan(4, 1, 1, 0, 7, True)
    batches = ClipBatches(
        plan, features, count_frames, collate,
        audio_s=dict.fromkeys(features, 0.5), repeats={"c01": 3},
    )  # fmt: skip

    seen = [clip for step in (1, 2) for b in batches.micro_batches(step) for clip in b.clip_ids]
    batches.close()

    assert batches.steps_per_epoch == 2
    assert Counter(seen) == {"c00": 1, "c01": 3, "c02": 1, "c03": 1, "c04": 1}


def test_balance_repeats_rarer_languages_up_to_an_equal_share() -> None:
    def clips(language: str, count: int) -> list[Clip]:
        return [
            Clip(f"{language}{n}", "", "", "s", language, 1.0, 8000, "train", "", 1)
            for n in range(count)
        ]

    both = clips("en", 90) + clips("ko", 20)

    def share(balance: float) -> int:
        repeats = count_repeats(both, balance)
        assert min(repeats.values()) == 1 and repeats["en0"] == 1
        return sum(repeats[clip.id] for clip in both if clip.language == "ko")

    assert share(0.0) == 20
    assert 35 <= share(0.5) <= 50
    assert 84 <= share(1.0) <= 96
