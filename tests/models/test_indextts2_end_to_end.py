"""IndexTTS-2 from a manifest or audio to a folder that upstream loads, at a tiny size."""

import csv
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.indextts2 import (
    Row,
    make_bpe,
    pair,
    read_yaml,
    write_arrays,
    write_base,
    write_manifest,
)
from trainer.config.presets import apply_preset
from trainer.core.errors import CheckpointError, DataError
from trainer.core.events import (
    Event,
    Notice,
    PreviewMade,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.core.train_state import TrainState, World
from trainer.inference.synthesis import export_voice, speak
from trainer.models.indextts2.checkpoint import base_folder
from trainer.models.indextts2.checkpoint.base_folder import CONDITIONING_FILE, open_base
from trainer.models.indextts2.checkpoint.shapes import (
    check_state,
    is_conditioning,
    refuse_other_versions,
)
from trainer.models.indextts2.text.tokenizer import PieceTokenizer
from trainer.models.indextts2.training.references import draws
from trainer.race import Race
from trainer.race.choices import RaceChoices, plan_race
from trainer.race.report import make_report
from trainer.runs.run import Run
from trainer.safe_unpickle import Conversion
from trainer.safe_unpickle.child import convert
from trainer.training.assemble import assemble
from trainer.training.loop import train

DEMO = Path(__file__).parent.parent.parent / "assets" / "demo"
Trained = tuple[Run, TrainState, list[Event]]
LATIN = ["text zero", "text one and two", "to be kept", "be text"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A feature cache that all tests here share."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TIMBRE_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def bpe_model() -> bytes:
    return make_bpe(LATIN, 30)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert pickles here; their process of its own, which one test tries, takes seconds."""

    def convert_here(jobs: Sequence[Conversion]) -> None:
        for job in jobs:
            job.target.mkdir(parents=True, exist_ok=True)
            convert(job.source, job.target, job.routes)

    monkeypatch.setattr(base_folder, "convert_pickles", convert_here)


@pytest.fixture(scope="module")
def community(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run of twenty steps on a manifest of single clips."""
    folder = tmp_path_factory.mktemp("community")
    rhythm = {"steps": 20, "validate_every": "20", "save_every": "17", "preview_every": "10"}
    return run_through(folder, make_config(*manifests(folder), training=rhythm, lr=2e-2))


def make_config(train_list: Path, eval_list: Path, **changes: Any) -> RunConfig:
    """Return a short run."""
    training = {
        "batch_size": 4, "steps": 3, "validate_every": "never", "save_every": "never",
        "preview_every": "never", "loader_workers": 0,
    }  # fmt: skip
    return RunConfig(
        data=DataConfig(train_csv=str(train_list), eval_csv=str(eval_list)),
        training=TrainingConfig(**training | changes.pop("training", {})),
        family=Choice("indextts2", {"dropout": 0.1} | changes.pop("options", {})),
        optimizer=Choice("adamw", {"lr": changes.pop("lr", 1e-2)}),
        **changes,
    )


def manifests(folder: Path, change: Callable[[list[Row]], list[Row]] = list) -> tuple[Path, Path]:
    """Write a community manifest of six clips, two of them for validation."""
    rows = [write_arrays(folder, number) for number in range(6)]
    train_list = write_manifest(folder / "train_manifest.jsonl", change(rows[:4]))
    return train_list, write_manifest(folder / "val_manifest.jsonl", change(rows[4:]))


def run_through(folder: Path, config: RunConfig) -> Trained:
    """Create a run and train it to its end."""
    run, state, events = assembled(folder, config)
    train(state, events.append)
    close(state)
    return run, state, events


def assembled(folder: Path, config: RunConfig) -> Trained:
    """Create a run and make everything ready for its first step."""
    events: list[Event] = []
    run = Run.create(folder / "run", config)
    state = assemble(run.folder, config, world=World(), emit=events.append)
    return run, state, events


def close(state: TrainState) -> None:
    """Stop the threads that make batches."""
    state.train_batches.close()
    if state.val_batches is not None:
        state.val_batches.close()


def losses_of(events: list[Event], name: str) -> list[float]:
    return [event.metrics[name] for event in events if isinstance(event, StepDone)]


def test_a_community_manifest_trains_as_it_is(community: Trained) -> None:
    _, state, events = community

    audio = losses_of(events, "train/loss/mel_ce")
    metrics = [event.metrics for event in events if isinstance(event, ValidationDone)][-1]
    # 20 codes are in use; the first step does not know which.
    assert audio[0] > 0.8 * math.log(200)
    assert audio[-1] < 0.8 * math.log(20)
    assert set(metrics) >= {"val/audio_top1", "val/text_top1", "val/audio_entropy"}
    assert not any(name.startswith("conditioning") for name in state.model.state_dict())


def test_the_study_of_a_preset_is_raced_to_a_verdict(tmp_path: Path) -> None:
    asked = make_config(*manifests(tmp_path), training={"steps": 10})
    config = apply_preset(asked, "indextts2-korean")
    config = replace(config, training=replace(config.training, steps=10, loader_workers=0))
    plan = plan_race(config, RaceChoices("adamw,prodigy", seeds="1,2", rates=1, validations=1))
    race = Race.create(tmp_path / "race", plan)

    def train_here(run: Run, wants_stop: Callable[[], bool]) -> str:
        world, emit = World(), run.events.append
        state = assemble(run.folder, run.config, world=world, emit=emit)
        emit(RunStarted(1, 10, 1))
        outcome = train(state, emit)
        close(state)
        emit(RunFinished(outcome, 10))
        return outcome

    assert race.carry_out(lambda text: None, train_here) == "finished"
    report = make_report(race.plan, race.results())

    assert [row.value for row in report.rows] == [1e-5, 1.0]
    assert {row.diverged for row in report.rows} == {"0 of 2"}
    assert all(comparison.low is not None for comparison in report.comparisons)


def test_previews_are_pictures_of_codes_and_speech_is_refused_with_the_reason(
    community: Trained,
) -> None:
    run, _, events = community

    notices = [event.text for event in events if isinstance(event, Notice)]
    previews = [event for event in events if isinstance(event, PreviewMade)]

    assert [event.step for event in previews] == [10, 20]
    assert all("% of 125 codes are correct (top-1)" in event.text for event in previews)
    assert [path.name for path in run.previews()] == ["step-00000010.svg", "step-00000020.svg"]
    assert len([text for text in notices if "cannot turn the codes" in text]) == 1
    with pytest.raises(DataError, match="original package"):
        speak(run, "hello")


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, community: Trained) -> None:
    run, _, events = community
    stopped = shutil.copytree(run.folder, tmp_path / "run")
    newest = stopped / "checkpoints" / "step-00000020"
    expected = load_file(newest / "model.safetensors")
    shutil.rmtree(newest)

    again: list[Event] = []
    resumed = assemble(stopped, run.config, world=World(), emit=again.append)
    train(resumed, again.append)

    assert resumed.first_step == 18
    assert losses_of(again, "train/loss") == losses_of(events, "train/loss")[17:]
    found = load_file(newest / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_pairs_keep_their_prompts_and_singles_borrow_another_voice(
    tmp_path: Path, community: Trained
) -> None:
    def paired(rows: list[Row]) -> list[Row]:
        return [pair(target, prompt) for target in rows for prompt in rows if target is not prompt]

    _, of_pairs, _ = assembled(tmp_path, make_config(*manifests(tmp_path, paired)))
    _, of_singles, _ = community

    for features, is_pair in (
        (of_pairs.corpus.features, True),
        (of_singles.corpus.features, False),
    ):
        draw = draws(features)
        for clip_id, own in features.items():
            drawn = [
                draw(clip_id, np.random.default_rng(0), np.random.default_rng(seed))
                for seed in range(8)
            ]
            is_own = [np.array_equal(one["condition"], own["condition"]) for one in drawn]
            assert all(is_own) if is_pair else not any(is_own)
            voices = {one["condition"].tobytes() for one in drawn}
            assert (len(voices) == 1) is is_pair


def test_rows_that_do_not_fit_the_base_are_named_and_left_out(tmp_path: Path) -> None:
    train_list, eval_list = manifests(tmp_path)
    np.save(tmp_path / "condition" / "clip1.npy", np.zeros((3, 5), np.float32))
    np.save(tmp_path / "codes" / "clip2.npy", np.full(50, 4000, np.int32))
    np.save(tmp_path / "text_ids" / "clip3.npy", np.full(9, 2, np.int32))

    run, state, _ = assembled(tmp_path, make_config(train_list, eval_list))

    ledger = (run.folder / "ledger.csv").read_text(encoding="utf-8-sig")
    assert len(state.corpus.features) == 3
    for reason in ("shape (3, 5)", "between 0 and 255", "unknown token"):
        assert reason in ledger


def test_codes_of_a_padded_batch_are_cut_to_the_length_of_the_audio(tmp_path: Path) -> None:
    def padded(rows: list[Row]) -> list[Row]:
        for row in rows:
            path = tmp_path / row["codes_path"]
            codes = np.load(path)
            np.save(path, np.concatenate([codes, np.full(60, codes[-1])]))
            row["code_len"] = len(codes) + 60
        return rows

    _, state, _ = assembled(tmp_path, make_config(*manifests(tmp_path, padded)))

    lengths = sorted(len(clip["codes"]) for clip in state.corpus.features.values())
    assert lengths == [41, 46, 51, 56, 61, 66]


@pytest.mark.usefixtures("in_this_process")
def test_the_export_passes_on_what_was_not_trained_and_loads_as_a_base(
    tmp_path: Path, bpe_model: bytes
) -> None:
    base = write_base(tmp_path / "base", bpe_model)
    options = {"text_ids": "from the text", "unknown_tokens": "keep"}
    config = make_config(*manifests(tmp_path), options=options, base=str(base))
    run, state, events = run_through(tmp_path, config)

    folder = export_voice(run, tmp_path / "out")

    written = torch.load(folder / "gpt.pth", weights_only=True)
    original = torch.load(base / "gpt.pth", weights_only=True)
    trained = state.model.state_dict()
    assert written.keys() == original.keys()
    for name, value in written.items():
        assert torch.equal(value, trained[name] if name in trained else original[name])
    assert any(not torch.equal(written[name], original[name]) for name in trained)
    assert (folder / "bpe.model").read_bytes() == bpe_model
    assert read_yaml(folder / "config.yaml") == read_yaml(base / "config.yaml")
    assert "did not make the modifications" in (folder / "LICENSE-WEIGHTS.txt").read_text("utf-8")
    assert open_base(folder).sizes == open_base(base).sizes


@pytest.mark.usefixtures("in_this_process")
def test_another_bpe_model_carries_the_text_tables_over(tmp_path: Path, bpe_model: bytes) -> None:
    base = write_base(tmp_path / "base", bpe_model)
    other = tmp_path / "other.model"
    other.write_bytes(make_bpe([*LATIN, "\uc548\ub155 text", "0 1 2 3 4 5 6"], 60))
    options = {"bpe_model": str(other), "text_ids": "from the text"}
    config = make_config(
        *manifests(tmp_path), options=options, base=str(base), training={"steps": 1}, lr=1e-9
    )

    run, state, _ = run_through(tmp_path, config)
    folder = export_voice(run, tmp_path / "out", which="last")

    rows, pieces = PieceTokenizer(other.read_bytes()), PieceTokenizer(bpe_model)
    old, new = (torch.load(f / "gpt.pth", weights_only=True) for f in (base, folder))
    table, mapped = old["text_embedding.weight"], new["text_embedding.weight"]
    shared = [piece for piece in pieces.pieces() if piece in rows.pieces()]
    assert len(shared) > 10
    for piece in shared:
        there, here = rows.pieces().index(piece), pieces.pieces().index(piece)
        torch.testing.assert_close(mapped[there], table[here])
    assert read_yaml(folder / "config.yaml")["gpt"]["number_text_tokens"] == rows.size
    assert (folder / "bpe.model").read_bytes() == other.read_bytes()
    assert len(state.corpus.features) == 6


@pytest.mark.parametrize("conditioning", ["precomputed", "trained"])
def test_audio_trains_too(tmp_path: Path, conditioning: str) -> None:
    with (DEMO / "train.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="|"))
    lines = ["|".join([str(DEMO / row[0]), *row[1:]]) for row in rows[1:9]]
    for name, part in (("train", lines[:6]), ("eval", lines[6:])):
        text = "\n".join(["|".join(rows[0]), *part]) + "\n"
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    config = make_config(
        tmp_path / "train.csv", tmp_path / "eval.csv", options={"conditioning": conditioning}
    )

    run, state, events = run_through(tmp_path, config)
    folder = export_voice(run, tmp_path / "out", which="last")

    assert losses_of(events, "train/loss")[-1] < losses_of(events, "train/loss")[0]
    name = "conditioning_encoder.encoders.0.feed_forward.w_1.weight"
    written = torch.load(folder / "gpt.pth", weights_only=True)[name]
    started = load_file(open_base(None).folder / CONDITIONING_FILE)[name]
    assert torch.equal(written, started) is (conditioning == "precomputed")


def test_a_base_may_be_wrapped_and_hold_weights_twice(tmp_path: Path, bpe_model: bytes) -> None:
    base = write_base(tmp_path / "base", bpe_model)
    state = torch.load(base / "gpt.pth", weights_only=True)
    expected = {name: value for name, value in state.items() if not is_conditioning(name)}
    state["gpt.wte.weight"] = state["mel_embedding.weight"]
    state["inference_model.lm_head.1.weight"] = state["mel_head.weight"]
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1e-5}]}
    torch.save({"model": state, "optimizer": optimizer, "step": 3}, base / "gpt.pth")

    found = open_base(base).gpt_state()

    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.usefixtures("in_this_process")
def test_other_versions_and_other_weights_are_refused_by_name(
    tmp_path: Path, bpe_model: bytes
) -> None:
    base = write_base(tmp_path / "base", bpe_model)
    state = torch.load(base / "gpt.pth", weights_only=True)

    torch.save(state | {"spk_emb_proj.weight": torch.zeros(64, 192)}, base / "gpt.pth")
    with pytest.raises(CheckpointError, match=r"IndexTTS-2\.5"):
        open_base(base)
    (base / "config.yaml").write_text("version: 2.5\ngpt: {}\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"IndexTTS-2\.5"):
        open_base(base)
    (base / "config.yaml").unlink()
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        open_base(base)


def test_weights_that_do_not_fit_are_named() -> None:
    base = open_base(None)
    state = base.gpt_state() | base.conditioning_state()
    shapes = {name: tuple(value.shape) for name, value in state.items()}

    with pytest.raises(CheckpointError, match=r"mel_head\.bias \(3,\) instead of"):
        check_state(shapes | {"mel_head.bias": (3,)}, base.sizes)
    with pytest.raises(CheckpointError, match=r"missing: speed_emb\.weight"):
        check_state({k: v for k, v in shapes.items() if "speed" not in k}, base.sizes)
    with pytest.raises(CheckpointError, match="emotion branch"):
        refuse_other_versions({name for name in shapes if "emo" not in name}, {})
