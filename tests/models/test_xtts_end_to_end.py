"""XTTS from a CSV to speech and to a folder for other tools, at a tiny size on demo clips."""

import csv
import json
import math
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from trainer.core.errors import CheckpointError, ConfigError, DataError
from trainer.core.events import Event, Notice, PreviewMade, StepDone, ValidationDone
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.core.train_state import TrainState, World
from trainer.inference.synthesis import export_voice, speak
from trainer.models.xtts.checkpoint.base_folder import open_base
from trainer.models.xtts.inference.synthesis import _encode, checks
from trainer.models.xtts.inference.voice import SpeakingGpt, own_model
from trainer.models.xtts.text.tokenizer import XttsTokenizer
from trainer.runs.run import Run
from trainer.train_gpt import Arguments, run_config, train_gpt
from trainer.training.assemble import assemble
from trainer.training.loop import train, train_step

DEMO = Path(__file__).parent.parent.parent / "assets" / "demo"
EXACT = {"dropout": 0.0}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A feature cache that all tests here share."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TIMBRE_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


def write_rows(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    """Write a CSV in the Coqui form."""
    lines = ["audio_file|text|speaker_name|language", *("|".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def demo_rows(count: int, texts: Sequence[str] = (), language: str = "en") -> list[list[str]]:
    """Return rows of the first demo clips, with other texts where some are given."""
    with (DEMO / "train.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="|"))[1 : count + 1]
    own = [*texts, *(row[1] for row in rows[len(texts) :])]
    return [
        [str(DEMO / row[0]), text, row[2], language] for row, text in zip(rows, own, strict=True)
    ]


def make_config(folder: Path, rows: Sequence[Sequence[str]], **changes: Any) -> RunConfig:
    """Return a short run on these rows, validated on the first two."""
    train_csv = write_rows(folder / "train.csv", rows)
    eval_csv = write_rows(folder / "eval.csv", demo_rows(12)[10:])
    training = {
        "batch_size": 4, "validate_every": "100 steps", "save_every": "100 steps",
        "preview_every": "never", "loader_workers": 0,
    }  # fmt: skip
    training |= changes.pop("training", {})
    return RunConfig(
        data=DataConfig(train_csv=str(train_csv), eval_csv=str(eval_csv)),
        training=TrainingConfig(**training),
        family=Choice("xtts", changes.pop("options", EXACT)),
        optimizer=Choice("adamw", {"lr": changes.pop("lr", 1e-2)}),
        **changes,
    )


def prepare(folder: Path, config: RunConfig) -> tuple[Run, TrainState, list[Event]]:
    """Create a run and assemble it."""
    events: list[Event] = []
    run = Run.create(folder / "run", config)
    return run, assemble(run.folder, config, world=World(), emit=events.append), events


def close(state: TrainState) -> None:
    state.train_batches.close()
    if state.val_batches is not None:
        state.val_batches.close()


def test_training_beats_the_entropy_of_codes_and_of_text(tmp_path: Path) -> None:
    options = EXACT | {"text_weight": 0.1}
    training = {"steps": 60, "batch_size": 6}
    config = make_config(tmp_path, demo_rows(6), options=options, training=training)
    _, state, events = prepare(tmp_path, config)
    clips = [state.corpus.features[clip_id] for clip_id in list(state.corpus.features)[:6]]
    code_entropy = entropy(np.concatenate([clip["codes"] for clip in clips]))
    text_entropy = entropy(np.concatenate([clip["tokens"] for clip in clips]))

    train(state, events.append)

    close(state)
    last = [event.metrics for event in events if isinstance(event, StepDone)][-1]
    # The codes of the random DVAE have to mean something, or beating them would be no feat.
    assert code_entropy / math.log(2) > 4
    assert last["train/loss/mel_ce"] < 0.3 * code_entropy
    assert last["train/loss/text_ce"] / 0.1 < 0.7 * text_entropy


def entropy(values: np.ndarray) -> float:
    """Return the entropy of single values in nats."""
    counts = np.array(list(Counter(values.tolist()).values()))
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    rows = demo_rows(10)
    options = {"dropout": 0.1}
    long = make_config(tmp_path, rows, options=options, training={"steps": 6, "save_every": "3"})
    (tmp_path / "a").mkdir()
    run, state, events = prepare(tmp_path / "a", long)
    train(state, events.append)
    close(state)
    whole = [e.metrics["train/loss"] for e in events if isinstance(e, StepDone)]
    newest = run.folder / "checkpoints" / "step-00000006"
    expected = load_file(newest / "model.safetensors")
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()

    again: list[Event] = []
    resumed = assemble(run.folder, long, world=World(), emit=again.append)
    train(resumed, again.append)
    close(resumed)

    assert resumed.first_step == 4
    assert [e.metrics["train/loss"] for e in again if isinstance(e, StepDone)] == whole[3:]
    found = load_file(newest / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("optimizations", "tolerance"),
    [
        ({"sdpa": {}}, 1e-5),
        ({"gradient_checkpointing": {}}, 1e-5),
        ({"mixed_precision": {"mode": "bf16"}}, 1e-2),
    ],
    ids=["sdpa", "checkpointing", "bf16"],
)
def test_optimizations_keep_the_losses(
    tmp_path: Path, optimizations: dict[str, dict[str, Any]], tolerance: float
) -> None:
    rows = demo_rows(8)
    losses = []
    for name, chosen in (("plain", {}), ("fast", optimizations)):
        (tmp_path / name).mkdir()
        config = make_config(
            tmp_path / name, rows, training={"steps": 3}, optimizations=chosen, lr=1e-3
        )
        _, state, _ = prepare(tmp_path / name, config)
        parts = [train_step(state, step) for step in (1, 2, 3)]
        losses.append([float(part[loss]) for part in parts for loss in ("text_ce", "mel_ce")])
        close(state)

    np.testing.assert_allclose(losses[1], losses[0], rtol=tolerance)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, TrainState, list[Event]]:
    """A short run with everything on: previews, validation, checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    training = {
        "steps": 4, "validate_every": "2 steps", "preview_every": "2 steps", "save_every": "2 steps"
    }  # fmt: skip
    run, state, events = prepare(folder, make_config(folder, demo_rows(8), training=training))
    train(state, events.append)
    close(state)
    return run, state, events


def test_a_run_tells_its_terms_its_previews_and_its_overruns(
    trained: tuple[Run, TrainState, list[Event]],
) -> None:
    run, _, events = trained

    validations = [event.metrics for event in events if isinstance(event, ValidationDone)]
    previews = [event for event in events if isinstance(event, PreviewMade)]

    assert any("random numbers" in e.text for e in events if isinstance(e, Notice))
    assert all(0 <= metrics["val/overrun_rate"] <= 1 for metrics in validations)
    assert all(0 <= metrics["val/audio_top1"] <= 1 for metrics in validations)
    assert [event.step for event in previews] == [2, 4]
    assert all((run.folder / event.path).stat().st_size > 1000 for event in previews)


def test_a_checkpoint_speaks_alone_without_cache_or_recordings(
    trained: tuple[Run, TrainState, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, state, _ = trained
    expected = speak(run, "The kettle is boiling.", which="4")
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "empty"))
    facts = json.loads(json.dumps(state.corpus.facts))
    for speaker in facts["speakers"]:
        speaker["references"] = ["/gone.wav"]
    checkpoint = run.folder / "checkpoints" / "step-00000004"

    model = state.family.load(checkpoint, state.family.options(**EXACT), facts)
    speech = state.family.synthesize(model, facts, "The kettle is boiling.", "hana")

    assert not (tmp_path / "empty").exists()
    np.testing.assert_array_equal(speech.wave, expected.wave)


def load_without_recordings(state: TrainState) -> tuple[SpeakingGpt, dict[str, Any]]:
    """Return a fresh model with two voices, of which that of `hana` has lost its recordings."""
    facts = json.loads(json.dumps(state.corpus.facts))
    facts["speakers"].append(facts["speakers"][0] | {"name": "twin"})
    facts["speakers"][0] |= {"references": ["/gone.wav"]}
    return own_model(state.family.load(None, state.family.options(**EXACT), facts)), facts


def test_a_voice_without_recordings_costs_neither_validation_nor_weights(
    trained: tuple[Run, TrainState, list[Event]], tmp_path: Path
) -> None:
    _, state, _ = trained
    model, facts = load_without_recordings(state)
    others = [about | {"speaker": "twin"} for about in facts["short_texts"]]

    assert checks(model, facts) == {}
    assert set(checks(model, facts | {"short_texts": others})) == {"overrun_rate"}
    state.family.export(model, facts, tmp_path / "checkpoint")
    again = own_model(state.family.load(tmp_path / "checkpoint", state.family.options(), facts))
    with pytest.raises(DataError, match=r"/gone\.wav no longer exists.*Put the recordings back"):
        state.family.synthesize(again, facts, "The kettle.", "hana")
    assert len(state.family.synthesize(again, facts, "The kettle.", "twin").wave) > 1000


def test_an_export_holds_the_voices_that_there_are(
    trained: tuple[Run, TrainState, list[Event]], tmp_path: Path
) -> None:
    _, state, _ = trained
    model, facts = load_without_recordings(state)
    assert state.family.publish is not None
    (tmp_path / "out").mkdir()

    state.family.publish(model, facts, tmp_path / "out", False)

    assert list(open_base(tmp_path / "out").voices()) == ["twin"]


def test_a_voice_speaks_the_language_whose_letters_fit_or_that_the_text_names(
    trained: tuple[Run, TrainState, list[Event]], tmp_path: Path
) -> None:
    rows = demo_rows(3) + demo_rows(5, KOREAN + KOREAN + KOREAN[:1], "ko")[3:]
    rows = [[audio, text, "both", language] for audio, text, _, language in rows]
    _, state, _ = prepare(tmp_path, make_config(tmp_path, rows))
    close(state)
    facts = state.corpus.facts
    voice = next(voice for voice in facts["speakers"] if voice["name"] == "both")
    ids = XttsTokenizer(facts["vocab"]).ids

    texts = ["Hello there.", KOREAN[0], "[de] Guten Tag.", "[wo] Na."]
    opened = [_encode(facts, text, voice)[0] for text in texts]

    assert voice["languages"] == ["en", "ko"]
    assert [int(tokens[0]) for tokens in opened] == [
        ids[token] for token in ("[en]", "[ko]", "[de]", "[en]")
    ]
    assert int(opened[2][1]) == ids["g"]
    # Hangul is read in Latin letters, so nothing of it was left out.
    assert len(opened[1]) > len(KOREAN[0])


def test_an_export_is_a_published_folder_and_a_base_again(
    trained: tuple[Run, TrainState, list[Event]], tmp_path: Path
) -> None:
    run, state, _ = trained

    folder = export_voice(run, tmp_path / "out", which="4")

    names = {path.name for path in folder.iterdir()}
    assert {
        "model.pth", "model.safetensors", "config.json", "vocab.json", "speakers_xtts.pth",
        "LICENSE-WEIGHTS.txt", "reference.wav",
    } <= names  # fmt: skip
    base = open_base(folder)
    own = {name: value.cpu() for name, value in state.model.state_dict().items()}
    assert all(torch.equal(value, own[name]) for name, value in base.gpt_state().items())
    latents, embedding = base.voices()["hana"]
    model = own_model(state.model).eval()
    assert torch.equal(embedding[0, :, 0], model.voice.reference("hana").embedding)
    with torch.no_grad():
        torch.testing.assert_close(latents, model.voice.latents(model, "hana"))
    half = export_voice(run, tmp_path / "half", which="4", bf16=True)
    assert open_base(half).gpt_state()["mel_head.weight"].dtype == torch.bfloat16


def test_a_base_in_bf16_trains_in_fp32(
    trained: tuple[Run, TrainState, list[Event]], tmp_path: Path
) -> None:
    run, _, _ = trained
    base = export_voice(run, tmp_path / "base", which="4", bf16=True)

    _, state, _ = prepare(tmp_path, make_config(tmp_path, demo_rows(4), base=str(base)))

    close(state)
    assert {value.dtype for value in state.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("kind", ["export", "checkpoint"])
def test_a_run_starts_from_what_an_earlier_run_left(
    trained: tuple[Run, TrainState, list[Event]], tmp_path: Path, kind: str
) -> None:
    run, state, _ = trained
    base = run.folder / "checkpoints" / "step-00000004"
    if kind == "export":
        base = export_voice(run, tmp_path / "base", which="4")

    _, fresh, _ = prepare(tmp_path, make_config(tmp_path, demo_rows(8), base=str(base)))

    close(fresh)
    for name, value in state.model.state_dict().items():
        assert torch.equal(fresh.model.state_dict()[name], value), name


AMHARIC = ["\u1230\u120b\u121d \u1290\u12c9", "\u12c8\u1270\u1275 \u1320\u1323"]
PERSIAN = [
    "\u0633\u0644\u0627\u0645 \u062f\u0646\u06cc\u0627",
    "\u0686\u0627\u06cc \u06af\u0631\u0645",
]
KOREAN = ["\uc548\ub155\ud558\uc138\uc694", "\uc88b\uc740 \uc544\uce68"]


@pytest.mark.parametrize(
    ("language", "texts", "grows"),
    [("am", AMHARIC, True), ("fa", PERSIAN, True), ("ko", KOREAN, False)],
)
def test_languages_train_with_the_letters_they_need(
    tmp_path: Path, language: str, texts: list[str], grows: bool
) -> None:
    rows = demo_rows(6, [texts[number % 2] for number in range(6)], language)
    base = open_base(None)

    _, state, _ = prepare(tmp_path, make_config(tmp_path, rows))

    facts = state.corpus.facts
    tokenizer = XttsTokenizer(facts["vocab"])
    assert tokenizer.unknown(texts[0], language) == []
    assert (len(facts["related"]) > 0) == grows
    old, new = base.gpt_state(), state.model.state_dict()
    rows_before = len(old["text_embedding.weight"])
    assert torch.equal(new["text_embedding.weight"][:rows_before], old["text_embedding.weight"])
    assert len(new["text_head.bias"]) == rows_before + len(facts["related"])
    for number, related in facts["related"].items():
        row = new["text_embedding.weight"][int(number)]
        mean = old["text_embedding.weight"][related].double().mean(0).float()
        torch.testing.assert_close(row, mean, rtol=1e-4, atol=1e-6)
    assert all(torch.isfinite(value) for value in train_step(state, 1).values())
    close(state)


def test_clips_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    rows = demo_rows(6, ["Snow \u2603 falls.", "word " * 120])
    events: list[Event] = []
    run = Run.create(tmp_path / "run", make_config(tmp_path, rows))

    state = assemble(run.folder, run.config, world=World(), emit=events.append)

    close(state)
    told = " ".join(event.text for event in events if isinstance(event, Notice))
    assert "has no token for \u2603" in told and "600 tokens; expected at most" in told
    assert state.train_batches.num_clips == 4
    with (run.folder / "ledger.csv").open(encoding="utf-8-sig", newline="") as file:
        ledger = list(csv.DictReader(file))
    assert [row["status"] for row in ledger][:3] == ["dropped", "dropped", "kept"]
    assert "has no token for \u2603" in ledger[0]["reason"]
    assert len(ledger) == 8


def test_new_tokens_are_refused_while_the_embeddings_are_kept_fixed(tmp_path: Path) -> None:
    rows = demo_rows(3, ["\u2c00 \u2c01 \u2c02"] * 3, "cu")
    config = make_config(tmp_path, rows, options=EXACT | {"freeze": "both"})
    run = Run.create(tmp_path / "run", config)

    with pytest.raises(DataError, match=r"texts in cu need \d+ new tokens.*Set Freeze"):
        assemble(run.folder, config, world=World(), emit=lambda event: None)


def test_amharic_letters_that_a_vocabulary_lacks_name_the_option_that_spells_them(
    tmp_path: Path,
) -> None:
    options = EXACT | {"new_tokens": "never"}
    config = make_config(tmp_path, demo_rows(2, ["\u1380\u1381"] * 2, "am"), options=options)
    run = Run.create(tmp_path / "run", config)

    with pytest.raises(DataError, match="turn on 'Amharic as phonemes'"):
        assemble(run.folder, config, world=World(), emit=lambda event: None)


def test_recordings_that_moved_are_heard_where_they_are_now(tmp_path: Path) -> None:
    rows = demo_rows(2)
    (tmp_path / "old").mkdir()
    copies = [shutil.copy(row[0], tmp_path / "old") for row in rows]
    names = [[Path(copy).name, *row[1:]] for copy, row in zip(copies, rows, strict=True)]
    write_rows(tmp_path / "old" / "train.csv", names)
    (tmp_path / "runs").mkdir()
    close(prepare(tmp_path / "old", own_clips(tmp_path / "old"))[1])
    (tmp_path / "old").rename(tmp_path / "new")

    _, state, _ = prepare(tmp_path / "runs", own_clips(tmp_path / "new"))

    close(state)
    references = state.corpus.facts["speakers"][0]["references"]
    assert {Path(path).parent for path in references} == {tmp_path / "new"}


def own_clips(folder: Path) -> RunConfig:
    """Return a run on the CSV of a folder, without validation."""
    data = DataConfig(train_csv=str(folder / "train.csv"), eval_fraction=0.0)
    return RunConfig(data=data, family=Choice("xtts"))


def test_a_run_whose_val_clips_are_all_unusable_says_that_it_is_not_validated(
    tmp_path: Path,
) -> None:
    config = make_config(tmp_path, demo_rows(4))
    write_rows(tmp_path / "eval.csv", demo_rows(12, ["Snow \u2603"] * 12)[10:])
    events: list[Event] = []
    run = Run.create(tmp_path / "run", config)

    state = assemble(run.folder, config, world=World(), emit=events.append)

    close(state)
    told = [event.text for event in events if isinstance(event, Notice)]
    assert "None of the 2 eval clips can be used, so this run has no validation." in told


def test_no_usable_clip_is_a_sentence(tmp_path: Path) -> None:
    rows = demo_rows(2, ["Snow \u2603", "\u2603 falls"])
    config = make_config(tmp_path, rows)
    run = Run.create(tmp_path / "run", config)

    with pytest.raises(DataError, match=r"None of the .*clips can be used .*has no token for"):
        assemble(run.folder, config, world=World(), emit=lambda event: None)


@pytest.mark.parametrize(
    ("freeze", "prefixes"),
    [
        ("conditioning", ("conditioning_",)),
        ("embeddings", ("text_embedding", "mel_embedding", "text_pos", "mel_pos")),
    ],
)
def test_what_is_kept_fixed_stays_as_it_is(
    tmp_path: Path, freeze: str, prefixes: tuple[str, ...]
) -> None:
    options = EXACT | {"freeze": freeze}
    _, state, _ = prepare(tmp_path, make_config(tmp_path, demo_rows(4), options=options))
    before = {name: value.clone() for name, value in state.model.state_dict().items()}

    train_step(state, 1)

    close(state)
    changed = {
        name
        for name, value in state.model.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed
    assert not [name for name in changed if name.startswith(prefixes)]


def test_a_fresh_gpt_of_another_size_keeps_the_frozen_networks(tmp_path: Path) -> None:
    options = EXACT | {"size": "small"}

    _, state, _ = prepare(tmp_path, make_config(tmp_path, demo_rows(4), options=options))

    close(state)
    model = own_model(state.model)
    assert isinstance(model, SpeakingGpt) and len(model.gpt.h) == 6
    assert model.voice.base.folder == open_base(None).folder


def test_train_gpt_returns_the_six_paths_people_expect(
    trained: tuple[Run, TrainState, list[Event]], tmp_path: Path
) -> None:
    run, _, _ = trained
    base = export_voice(run, tmp_path / "out" / "base_models" / "v2.0.2", which="4")
    train_csv = write_rows(tmp_path / "train.csv", demo_rows(6))
    eval_csv = write_rows(tmp_path / "eval.csv", demo_rows(8)[6:])

    result = train_gpt(
        custom_model="", version="v2.0.2", language="en", num_epochs=1, batch_size=3,
        grad_acumm=2, train_csv=str(train_csv), eval_csv=str(eval_csv),
        output_path=str(tmp_path / "out"), max_audio_length=255995, enable_grad_checkpoint=True,
        enable_sdpa=True, enable_mixed_precision=False, use_amharic_g2p=False,
    )  # fmt: skip

    speakers, config, checkpoint, vocab, folder, reference = result
    assert base.is_dir()
    assert all(Path(path).is_file() for path in (speakers, config, checkpoint, vocab, reference))
    asked = Run.open(folder).config
    assert (asked.training.batch_size, asked.training.accumulate) == (3, 2)
    assert set(asked.optimizations) == {"gradient_checkpointing", "sdpa"}


def test_train_gpt_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_epoch"):
        train_gpt(train_csv="a.csv", num_epoch=3)
    with pytest.raises(ConfigError, match="train_csv"):
        train_gpt(output_path=str(tmp_path))
    with pytest.raises(CheckpointError, match="Download model.pth"):
        train_gpt(train_csv="a.csv", output_path=str(tmp_path))
    assert (
        run_config(
            Arguments(train_csv="a.csv", language="amh", custom_model=str(tmp_path))
        ).data.language
        == "am"
    )


def test_a_folder_without_its_dvae_trains_nothing_and_says_so(
    trained: tuple[Run, TrainState, list[Event]], tmp_path: Path
) -> None:
    run, _, _ = trained
    base = export_voice(run, tmp_path / "base", which="4")
    (base / "dvae.pth").unlink()

    with pytest.raises(CheckpointError, match=r"no dvae\.pth .*Copy the dvae\.pth"):
        prepare(tmp_path, make_config(tmp_path, demo_rows(4), base=str(base)))
