"""FastSpeech 2: parity with the original, shapes, symbols, survey, checkpoints, synthesis."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from tests.parity.tiny_fastspeech2 import EXPECTED_LOSSES, tiny_batch, tiny_network
from trainer.core.errors import CheckpointError, DataError
from trainer.core.types import Batch, Clip, Features
from trainer.data.text.sentences import split_sentences
from trainer.models._layers.attention import SelfAttention
from trainer.models._layers.mel import MelSettings
from trainer.models.fastspeech2 import Options, tokens
from trainer.models.fastspeech2.checkpoint import weights
from trainer.models.fastspeech2.checkpoint.published import describe_published
from trainer.models.fastspeech2.inference.synthesis import synthesize
from trainer.models.fastspeech2.network import (
    FastSpeech2,
    Sizes,
    depthwise_conv,
    round_durations,
    sizes_of,
)
from trainer.models.fastspeech2.training.batches import collate, counts
from trainer.models.fastspeech2.training.featurizer import SpeechFeaturizer
from trainer.models.fastspeech2.training.losses import losses
from trainer.models.fastspeech2.training.survey import interpolate_log_f0, survey

TINY = Sizes("convolution", 16, 1, 1, predictor_width=8, ffn_width=16)
WORDS = ["abba cab", "bad cabbage", "dab a dab", "face a cab"]


def make_clip(number: int, split: str = "train", speaker: str = "ann", text: str = "") -> Clip:
    text = text or WORDS[number % len(WORDS)]
    return Clip(
        f"clip{number}", "", text, speaker, "en", 1.0, 22050, split, "train.csv", number + 2
    )


def make_features(clip: Clip, num_frames: int = 70) -> Features:
    generator = np.random.default_rng(len(clip.text))
    mel = generator.normal(-5, 1, (num_frames, 80)).astype(np.float32)
    f0 = np.where(np.arange(num_frames) % 20 < 12, 150 + np.arange(num_frames), 0)
    energy = np.abs(generator.normal(30, 9, num_frames)).astype(np.float32)
    return {"mel": mel, "f0": f0.astype(np.float32), "energy": energy}


def run_survey(clips: list[Clip], base: Path | None = None, **options: Any) -> Any:
    features = {clip.id: make_features(clip) for clip in clips}
    return survey(features, clips, Options(**options), base, lambda phase, done, total: None)


def make_batch(features: list[Features]) -> Batch:
    totals = {name: sum(counts(clip)[name] for clip in features) for name in ("frames", "tokens")}
    return Batch(collate(features), [str(index) for index in range(len(features))], totals, 1.0)


def forced(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: batch[name] for name in ("durations", "pitch", "energy", "mel_mask")}


# --- the network


def test_losses_equal_those_of_the_original() -> None:
    found = losses(tiny_network(), tiny_batch())

    assert {name: value.item() for name, value in found.items()} == pytest.approx(
        EXPECTED_LOSSES, rel=1e-5
    )


def test_the_sizes_have_the_stated_parameters() -> None:
    small = FastSpeech2(sizes_of("small", "auto", None), 40, 1)
    standard = FastSpeech2(sizes_of("standard", "auto", None), 361, 1)

    assert 0.9e6 < sum(value.numel() for value in small.state_dict().values()) < 1.1e6
    assert 35.1e6 < sum(value.numel() for value in standard.state_dict().values()) < 35.3e6


@pytest.mark.parametrize("size", ["small", "standard"])
@pytest.mark.parametrize("blocks", ["convolution", "transformer"])
def test_padding_changes_nothing(size: str, blocks: str) -> None:
    torch.manual_seed(0)
    corpus = run_survey([make_clip(number) for number in range(3)])
    features = list(corpus.features.values())
    features[1] = {**features[1], "mel": features[1]["mel"][:-9]}
    features[1]["durations"] = features[1]["durations"].copy()
    features[1]["durations"][np.argmax(features[1]["durations"])] -= 9
    network = FastSpeech2(sizes_of(size, blocks, None), len(corpus.facts["symbols"]), 2).eval()
    together, alone = make_batch(features), make_batch(features[1:2])

    with torch.no_grad():
        inputs = [
            (b["tokens"], b["token_mask"], b["speaker"], forced(b)) for b in (together, alone)
        ]
        batched, single = (network(*arguments) for arguments in inputs)

    length, num_tokens = single.mel.shape[1], single.pitch.shape[1]
    torch.testing.assert_close(batched.mel_refined[1, :length], single.mel_refined[0])
    torch.testing.assert_close(batched.energy[1, :num_tokens], single.energy[0])
    assert length < batched.mel.shape[1]


def test_each_token_is_repeated_for_its_frames() -> None:
    network = FastSpeech2(replace(TINY, num_bins=8), 5, 1)
    hidden = torch.arange(3.0)[None, :, None].expand(1, 3, 16) + 1

    frames = network.variance_adaptor._spread(
        hidden, torch.tensor([[2, 0, 3]]), torch.ones(1, 6, dtype=torch.bool)
    )

    assert frames[0, :5, 0].tolist() == [1, 1, 3, 3, 3]


def test_depthwise_convolution_equals_a_grouped_one_with_its_gradients() -> None:
    torch.manual_seed(0)
    shapes = [(2, 9, 4), (7, 4), (4,)]
    ours = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    theirs = [value.detach().clone().requires_grad_() for value in ours]

    found = depthwise_conv(*ours)
    hidden, weight, bias = theirs
    expected = F.conv1d(hidden.transpose(1, 2), weight.t()[:, None], bias, padding=3, groups=4)
    found.square().sum().backward()
    expected.square().sum().backward()

    torch.testing.assert_close(found, expected.transpose(1, 2))
    for value, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(value.grad, other.grad)


def test_fused_attention_equals_the_explicit_product() -> None:
    network, batch = tiny_network(), tiny_batch()
    explicit = network(batch["tokens"], batch["token_mask"], batch["speaker"], forced(batch))
    layers = [module for module in network.modules() if isinstance(module, SelfAttention)]

    for layer in layers:
        layer.use_sdpa = True
    fused = network(batch["tokens"], batch["token_mask"], batch["speaker"], forced(batch))

    assert len(layers) == 4
    torch.testing.assert_close(fused.mel, explicit.mel)


def test_clips_longer_than_the_position_table_are_kept_whole() -> None:
    batch = tiny_batch(num_clips=1, num_frames=1010)

    prediction = tiny_network()(
        batch["tokens"], batch["token_mask"], batch["speaker"], forced(batch)
    )

    assert prediction.mel.shape == (1, 1010, 80)
    assert torch.isfinite(prediction.mel).all()


def test_predicted_durations_are_whole_and_never_all_zero() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    guesses = torch.tensor([[-1.0, 0.0, 5.0], [np.log(4.0), np.log(2.4), 0.0]])

    found = round_durations(guesses, mask, pace=1.0)

    assert found.tolist() == [[1, 0, 0], [3, 1, 0]]


# --- text


def test_unknown_symbols_are_left_out_and_accents_fall_back() -> None:
    known = [*tokens.SPECIALS, "a", "e", " "]

    found = tokens.encode_symbols(list("a \u00e9\u4e16"), known)

    assert found.tolist() == [1, 3, 5, 4, 2]
    assert len(tokens.encode_symbols(list(" "), known)) == 0


def test_text_is_cut_at_sentence_ends_and_long_sentences_between_words() -> None:
    long = "word " * 100

    found = split_sentences(f"One. Two? ... At 3.5: {long}")

    assert found[:3] == ["One.", "Two?", "At 3.5:"]
    assert all(len(piece) <= 230 for piece in found)
    assert " ".join(found[3:]).split() == long.split()


@pytest.mark.parametrize(
    ("text", "first"),
    [("\ud55c", "\u1112"), ("\u12a0\u121b", "\u12a0"), ("\u0633\u0644", "\u0633")],
)
def test_other_scripts_become_symbols(text: str, first: str) -> None:
    (found,) = tokens.split_symbols([text], ["ko"], "characters")

    assert found[0] == first
    assert all(map(tokens.is_speakable, found))


# --- features and survey


def test_trimming_is_an_option_and_changes_the_fingerprint(tmp_path: Path) -> None:
    rate = MelSettings().sample_rate
    speech = np.sin(np.arange(rate // 2) * 0.1) * 0.5
    silence = np.full(rate // 2, 1e-5)
    soundfile.write(tmp_path / "a.wav", np.concatenate([silence, speech, silence]), rate)
    clip = replace(make_clip(0), audio_path=str(tmp_path / "a.wav"))

    whole, trimmed = (SpeechFeaturizer(MelSettings(), trim) for trim in (False, True))

    assert len(whole(clip)["mel"]) == 3 * (rate // 2) // 256
    assert rate // 512 <= len(trimmed(clip)["mel"]) < rate * 0.7 / 256
    assert whole.fingerprint != trimmed.fingerprint


@pytest.mark.parametrize(("length", "size"), [(300, 0.5), (9000, 1e-5)])
def test_a_clip_without_speech_is_refused(tmp_path: Path, length: int, size: float) -> None:
    wave = size * np.sin(np.arange(length))
    soundfile.write(tmp_path / "a.wav", wave, 22050, subtype="FLOAT")
    clip = replace(make_clip(0), audio_path=str(tmp_path / "a.wav"))

    with pytest.raises(DataError, match="a.wav"):
        SpeechFeaturizer(MelSettings(), False)(clip)


def test_pitch_is_drawn_across_unvoiced_frames() -> None:
    f0 = np.array([0, 100, 0, 0, 200, 0], np.float32)

    found = np.exp(interpolate_log_f0(f0, 5.0))

    assert found[0] == pytest.approx(100)
    assert found[5] == pytest.approx(200)
    assert 100 < found[2] < found[3] < 200


def test_targets_are_normal_for_each_speaker() -> None:
    clips = [make_clip(number, speaker="ab"[number % 2]) for number in range(4)]

    corpus = run_survey(clips)

    for features in corpus.features.values():
        assert features["durations"].sum() == len(features["mel"]) == 70
        assert len(features["durations"]) == len(features["tokens"]) == len(features["pitch"])
        assert abs(np.average(features["energy"], weights=features["durations"])) < 0.5
    assert [voice["name"] for voice in corpus.facts["speakers"]] == ["a", "b"]


def test_clips_that_cannot_be_used_are_named_with_a_reason() -> None:
    clips = [
        make_clip(0),
        make_clip(1, text="...!"),
        make_clip(2, text="abba cab " * 9),
        make_clip(3, split="val", speaker="eve"),
    ]

    corpus = run_survey(clips)

    assert set(corpus.features) == {"clip0"}
    assert "no speakable symbol" in corpus.unusable["clip1"]
    assert "too long for 70 frames" in corpus.unusable["clip2"]
    assert "'eve' has no train clip" in corpus.unusable["clip3"]


def test_symbols_come_from_the_train_clips_alone() -> None:
    corpus = run_survey([make_clip(0, text="abba"), make_clip(1, split="val", text="zap")])

    assert corpus.facts["symbols"] == [*tokens.SPECIALS, "a", "b"]
    assert len(corpus.features["clip1"]["tokens"]) == 3


def test_a_manifest_without_usable_clips_is_refused() -> None:
    with pytest.raises(DataError, match="no speakable symbol"):
        run_survey([make_clip(0, text="?!")])


# --- checkpoints


@pytest.fixture
def base(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A checkpoint folder of the small size that knows a, b, c and the speaker ann."""
    corpus = run_survey([make_clip(0), make_clip(1, text="bca", speaker="bob")])
    torch.manual_seed(1)
    network = weights.load(None, Options(), corpus.facts)
    folder = tmp_path / "base"
    weights.export(network, corpus.facts, folder)
    return folder, corpus.facts


def test_a_base_keeps_its_rows_and_new_ones_take_the_mean(base: Any) -> None:
    folder, facts = base
    clips = [make_clip(0, text="cab zoo", speaker="zoe"), make_clip(1, speaker="bob")]

    corpus = run_survey(clips, folder)
    network = weights.load(folder, Options(), corpus.facts)

    stored = load_file(folder / "model.safetensors")
    known, symbols = facts["symbols"], corpus.facts["symbols"]
    table, old = network.encoder.src_word_emb.weight, stored["encoder.src_word_emb.weight"]
    speakers, old_speakers = network.speaker_emb, stored["speaker_emb.weight"]
    assert symbols[: len(known)] == known
    assert set(symbols[len(known) :]) == {"z", "o"} | set("deg") - set(known)
    assert [voice["name"] for voice in corpus.facts["speakers"]] == ["ann", "bob", "zoe"]
    torch.testing.assert_close(table[: len(known)], old)
    torch.testing.assert_close(table[symbols.index("z")], old.mean(dim=0))
    assert speakers is not None
    torch.testing.assert_close(speakers.weight[2], old_speakers.mean(dim=0))


def test_a_base_of_another_size_is_refused_with_the_remedy(base: Any) -> None:
    folder, facts = base

    with pytest.raises(CheckpointError, match="Set Size to 'small'"):
        run_survey([make_clip(0)], folder, size="standard")
    sizes = sizes_of("standard", "auto", None).to_json()
    with pytest.raises(CheckpointError, match="another size"):
        weights.load(folder, Options(size="standard"), {**facts, "sizes": sizes})


def test_missing_and_misshapen_weights_are_named(base: Any) -> None:
    folder, facts = base
    state = load_file(folder / "model.safetensors")
    del state["mel_linear.bias"]
    state["mel_linear.weight"] = torch.zeros(3, 3)
    save_file(state, folder / "model.safetensors")

    with pytest.raises(CheckpointError) as caught:
        weights.load(folder, Options(), facts)

    assert "missing: mel_linear.bias" in str(caught.value)
    assert "mel_linear.weight (3, 3) instead of (80, 128)" in str(caught.value)


@pytest.mark.parametrize("damage", ["absent", "cut", "other family", "newer"])
def test_a_damaged_folder_is_explained(base: Any, damage: str) -> None:
    folder, facts = base
    if damage == "absent":
        (folder / "model.safetensors").unlink()
    elif damage == "cut":
        (folder / "model.safetensors").write_bytes(b"1234")
    else:
        other = {"family": "xtts"} if damage == "other family" else {"format": 99}
        (folder / "config.json").write_text(json.dumps({**facts, **other}))

    with pytest.raises(CheckpointError, match=str(folder)):
        weights.read_base(folder)


@pytest.fixture(scope="module")
def published(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, torch.Tensor]]:
    """A file in the published form, of a tiny network with the published symbol table."""
    torch.manual_seed(2)
    network = FastSpeech2(Sizes("transformer", 16, 1, 1, num_bins=8, postnet_width=8), 361, 1)
    path = tmp_path_factory.mktemp("published") / "900000.pth.tar"
    torch.save({"model": network.state_dict(), "optimizer": {}}, path)
    return path, network.state_dict()


def test_a_published_file_loads_strictly(published: Any) -> None:
    path, state = published
    facts, _ = weights.read_base(path)

    network = weights.load(path, Options(size="standard"), facts)

    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, state[name])


def test_letters_and_silence_start_from_the_nearest_published_sound(published: Any) -> None:
    path, state = published
    facts, _ = weights.read_base(path)
    wanted = {**facts, "symbols": [*facts["symbols"], tokens.BEGIN, tokens.END, "\u0283"]}

    table = weights.load(path, Options(size="standard"), wanted).encoder.src_word_emb.weight

    old, names = state["encoder.src_word_emb.weight"], facts["symbols"]
    torch.testing.assert_close(table[-1], old[names.index("@SH")])
    torch.testing.assert_close(table[-2], old[names.index("@sil")])
    torch.testing.assert_close(table[names.index("k")], old[names.index("@K")])
    torch.testing.assert_close(table[names.index("@K")], old[names.index("@K")])


def test_a_single_voice_gains_speakers_without_changing(published: Any) -> None:
    path, state = published
    facts = describe_published(state)
    voice = {"language": "en", "pitch_mean": 5, "pitch_std": 1, "energy_mean": 0, "energy_std": 1}
    two = {**facts, "speakers": [{"name": name, **voice} for name in ("ann", "bob")]}

    network = weights.load(path, Options(size="standard"), two)

    assert network.speaker_emb is not None
    assert not network.speaker_emb.weight.any()


def test_a_pickle_that_could_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.pth.tar"
    torch.save({"model": zipfile.ZipInfo("x")}, path)

    with pytest.raises(CheckpointError, match="zipfile.ZipInfo, and loading that could run code"):
        weights.read_base(path)


# --- synthesis


@pytest.mark.parametrize("vocoder", ["pulse", "griffin-lim"])
def test_every_vocoder_speaks_every_sentence(vocoder: str) -> None:
    corpus = run_survey([make_clip(0), make_clip(1)], vocoder=vocoder)
    torch.manual_seed(0)
    network = weights.load(None, Options(), corpus.facts)

    one = synthesize(network, corpus.facts, "abba", "ann")
    two = synthesize(network, corpus.facts, "abba. abba", "ann")

    assert network.training
    assert len(two.wave) > 1.9 * len(one.wave)
    assert one.sample_rate == 22050


def test_an_unknown_speaker_is_told_whom_there_is() -> None:
    corpus = run_survey([make_clip(0)])
    network = weights.load(None, Options(), corpus.facts)

    with pytest.raises(DataError, match="no speaker 'eve'. Choose one of: ann"):
        synthesize(network, corpus.facts, "abba", "eve")
