"""Our half of the comparison with the original XTTS v2, and the check against golden numbers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.core.types import Batch
from trainer.models.xtts.inference.generation import Sampling, adjust, generate
from trainer.models.xtts.network.dvae import DvaeEncoder, dvae_sizes, load_dvae
from trainer.models.xtts.network.gpt import XttsGpt
from trainer.models.xtts.network.mel import conditioning_mel, dvae_mel
from trainer.models.xtts.network.sizes import DvaeSizes, GptSizes, SpeakerSizes, VocoderSizes
from trainer.models.xtts.network.speaker_encoder import (
    SpeakerEncoder,
    load_speaker_encoder,
    speaker_sizes,
)
from trainer.models.xtts.network.vocoder import XttsVocoder, load_vocoder, vocoder_sizes
from trainer.models.xtts.training.batches import counts, make_collate
from trainer.models.xtts.training.losses import losses

try:
    from tests.parity import xtts_inputs as inputs
except ModuleNotFoundError:  # run as a script, whose folder is on the path instead
    import xtts_inputs as inputs

Tensors = dict[str, Tensor]
Shapes = Mapping[str, Mapping[str, str]]

SIZES = {
    "small": (
        DvaeSizes(**inputs.DVAE),
        VocoderSizes(**inputs.VOCODER),
        SpeakerSizes(**inputs.SPEAKER),
    ),
    "full": (DvaeSizes(), VocoderSizes(), SpeakerSizes()),
}


def make_gpt(shapes: Shapes) -> XttsGpt:
    """Build the small GPT, with the drawn weights under the published keys, for evaluation."""
    gpt = XttsGpt(GptSizes(**inputs.GPT))
    gpt.load_state_dict(inputs.draw_state(inputs.unpack(shapes["gpt"])), strict=True)
    return gpt.eval()


def make_frozen(shapes: Shapes, size: str) -> tuple[DvaeEncoder, XttsVocoder, SpeakerEncoder]:
    """Build the frozen networks from drawn weights in the published layout."""
    dvae, vocoder, speaker = SIZES[size]
    states = {
        part: inputs.draw_state(inputs.unpack(shapes[part]))
        for part in ("dvae", "vocoder", "speaker")
    }
    fixed = {
        key: value
        for key, value in SpeakerEncoder(speaker).state_dict().items()
        if inputs.is_fixed(key)
    }
    states["speaker"] |= fixed
    assert dvae_sizes(states["dvae"]) == dvae
    assert vocoder_sizes(states["vocoder"]) == vocoder
    assert speaker_sizes(states["speaker"]) == speaker
    return (
        load_dvae(states["dvae"], dvae),
        load_vocoder(states["vocoder"], vocoder),
        load_speaker_encoder(states["speaker"], speaker),
    )


def compute_gpt(gpt: XttsGpt) -> Tensors:
    """Return what the original computes with its GPT, under the same names."""
    return {
        **_conditioning(gpt),
        **_training(gpt, "training"),
        **_training(gpt, "masked"),
        **_visible_stop(gpt),
        **_generation(gpt),
    }


@torch.no_grad()
def compute_mels() -> Tensors:
    """Return both mels. (1, 80, T_mel)"""
    audio, stats = inputs.speech("front end", 2.0, 22050), inputs.mel_stats()
    return {"mel.dvae": dvae_mel(audio, stats), "mel.conditioning": conditioning_mel(audio, stats)}


@torch.no_grad()
def compute_frozen(
    dvae: DvaeEncoder, vocoder: XttsVocoder, speaker: SpeakerEncoder, size: str
) -> Tensors:
    """Return codes, audio and the embedding of a speaker."""
    widths = vocoder.waveform_decoder.conv_pre.in_channels
    latents, voice = inputs.vocoder_inputs(widths, SIZES[size][1].speaker_width)
    mel = dvae_mel(inputs.speech("front end", 2.0, 22050), inputs.mel_stats())
    return {
        f"codes.{size}": dvae.encode(mel),
        f"codes.{size}.noise": dvae.encode(inputs.noise_mel()),
        f"vocoder.{size}": vocoder(latents, voice).flatten(),
        f"speaker.{size}": speaker(inputs.speech("speaker", 1.5, 16000)),
    }


def _latents(gpt: XttsGpt) -> Tensor:
    """Return the latents of the first clip's reference. (1, 32, D)"""
    return gpt.condition(inputs.training_clips()[0]["reference"][None])


@torch.no_grad()
def _conditioning(gpt: XttsGpt) -> Tensors:
    return {"conditioning": _latents(gpt)}


def _batch(sizes: GptSizes, masked: bool, upstream: bool) -> Batch:
    clips: list[dict[str, Any]] = []
    for clip in inputs.training_clips():
        features = {name: value.numpy() for name, value in clip.items()}
        features["reference_frames"] = torch.tensor(clip["reference"].shape[1]).numpy()
        if not masked:
            features["masked"] = torch.zeros(2, dtype=torch.int64).numpy()
        clips.append(features)
    tensors = make_collate(sizes, upstream)(clips)
    found = [counts(clip) for clip in clips]
    totals = {name: sum(count[name] for count in found) for name in ("text", "audio")}
    return Batch(tensors, [str(number) for number in range(len(clips))], totals, 0.0)


def _training(gpt: XttsGpt, name: str) -> Tensors:
    gpt.zero_grad()
    found = losses(gpt, _batch(gpt.sizes, masked=name == "masked", upstream=True))
    torch.stack(list(found.values())).sum().backward()
    result = _unweighted(gpt, found, name)
    for key, parameter in gpt.named_parameters():
        assert parameter.grad is not None
        result[f"{name}.gradient.{key}"] = parameter.grad.clone()
    return result


@torch.no_grad()
def _visible_stop(gpt: XttsGpt) -> Tensors:
    found = losses(gpt, _batch(gpt.sizes, masked=False, upstream=False))
    return _unweighted(gpt, found, "visible_stop")


def _unweighted(gpt: XttsGpt, found: Tensors, name: str) -> Tensors:
    return {
        f"{name}.loss.text": found["text_ce"].detach() / gpt.loss_weights["text_ce"],
        f"{name}.loss.audio": found["mel_ce"].detach() / gpt.loss_weights["mel_ce"],
    }


@torch.no_grad()
def _generation(gpt: XttsGpt) -> Tensors:
    latents, text = _latents(gpt), inputs.sentence()
    greedy = Sampling(do_sample=False, repetition_penalty=1.0)
    penalised = Sampling(do_sample=False, repetition_penalty=5.0)
    spoken = generate(gpt, latents, text, penalised, seed=0)
    stop, bias = torch.tensor([inputs.STOP_AUDIO]), gpt.mel_head.bias.clone()
    gpt.mel_head.bias[inputs.STOP_AUDIO] += inputs.STOP_BIAS
    stopped = generate(gpt, latents, text, penalised, seed=0)
    gpt.mel_head.bias.copy_(bias)
    assert torch.allclose(spoken.latents, gpt.audio_latents(latents, text, spoken.codes), atol=1e-4)
    return {
        "generation.greedy": generate(gpt, latents, text, greedy, seed=0).codes,
        "generation.penalised": spoken.codes,
        # The original returns the stop code as well.
        "generation.stopped": torch.cat([stopped.codes, stop[: int(stopped.stopped)]]),
        "latents": gpt.audio_latents(latents, text, spoken.codes)[None],
    }


@torch.no_grad()
def sampling_scores(gpt: XttsGpt, codes: Tensor) -> Tensor:
    """Return the scores from which each of these codes (T,) would be drawn. (T, V)"""
    hidden = gpt.audio_latents(_latents(gpt), inputs.sentence(), codes)
    seen = torch.zeros(gpt.sizes.num_audio_tokens, dtype=torch.bool)
    # The original fills the prefix with code 1.
    seen[[1, inputs.START_AUDIO]] = True
    rows = []
    for logits, code in zip(gpt.mel_head(hidden), codes, strict=True):
        rows.append(adjust(logits, seen, Sampling()))
        seen[code] = True
    return torch.stack(rows)


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference relative to the largest value; of codes, how many differ."""
    if ours.shape != theirs.shape:
        return float("inf")
    if not theirs.is_floating_point():
        return float((ours != theirs).sum())
    dropped = torch.isinf(theirs)
    if not torch.equal(dropped, torch.isinf(ours)):
        return float("inf")
    ours, theirs = ours[~dropped].double(), theirs[~dropped].double()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-12))
