"""The original's half of the comparison: runs in an environment that holds coqui-tts.

    python _coqui_side.py compute FOLDER   every expected value of the small networks
    python _coqui_side.py make FOLDER      a checkpoint folder as the original publishes it
    python _coqui_side.py speak FOLDER...  load checkpoint folders and speak one sentence with each

Never imports our `trainer`: a package that coqui-tts depends on has the same name.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import xtts_inputs as inputs
from safetensors.torch import save_file
from torch import Tensor, nn
from TTS.encoder.models.resnet import ResNetSpeakerEncoder
from TTS.tts.configs.xtts_config import XttsArgs, XttsAudioConfig, XttsConfig
from TTS.tts.layers.tortoise.arch_utils import TorchMelSpectrogram
from TTS.tts.layers.xtts.dvae import DiscreteVAE
from TTS.tts.layers.xtts.gpt import GPT
from TTS.tts.layers.xtts.hifigan_decoder import HifiDecoder
from TTS.tts.models.xtts import Xtts, wav_to_mel_cloning

PACKAGES = ("coqui-tts", "coqui-tts-trainer", "torch", "torchaudio", "transformers")
Tensors = dict[str, Tensor]


def main() -> None:
    """Run one command; results lie beside the inputs as safetensors and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("compute", "make", "speak"))
    parser.add_argument("folders", type=Path, nargs="+")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    commands = {"compute": compute, "make": make, "speak": speak}
    for folder in arguments.folders:
        commands[arguments.command](folder)


def compute(folder: Path) -> None:
    """Write expected.safetensors and expected.json."""
    gpt = filled(small_gpt())
    shapes = {"full": full_shapes(), "small": small_shapes(gpt)}
    tensors = {
        **front_ends(folder),
        **conditioning(gpt),
        **training(gpt, "training"),
        **training(gpt, "masked"),
        **visible_stop(gpt),
        **generation(gpt),
        **frozen(),
    }
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / OUTPUT)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    facts = {"versions": versions, "shapes": shapes}
    (folder / "expected.json").write_text(json.dumps(facts))


OUTPUT = "expected.safetensors"


def filled(module: nn.Module) -> Any:
    """Replace every tensor that is not a constant of the network; return it for evaluation."""
    state = module.state_dict()
    module.load_state_dict(
        state | inputs.draw_state({key: value.shape for key, value in state.items()})
    )
    return module.eval()


def small_gpt() -> GPT:
    """Build the GPT of xtts_inputs.GPT."""
    return build_gpt(**inputs.GPT)


def build_gpt(
    layers: int,
    width: int,
    heads: int,
    num_text_tokens: int,
    max_text_tokens: int,
    max_audio_tokens: int,
) -> GPT:
    """Build the GPT of version 2 at these sizes."""
    return GPT(
        layers=layers,
        model_dim=width,
        heads=heads,
        number_text_tokens=num_text_tokens,
        max_text_tokens=max_text_tokens,
        max_mel_tokens=max_audio_tokens,
        max_prompt_tokens=70,
        num_audio_tokens=1026,
        start_audio_token=inputs.START_AUDIO,
        stop_audio_token=inputs.STOP_AUDIO,
        use_perceiver_resampler=True,
    )


def build_dvae(hidden: int = 512, codebook_width: int = 512) -> DiscreteVAE:
    """Build the DVAE as GPTTrainer does."""
    return DiscreteVAE(
        channels=80,
        normalization=None,
        positional_dims=1,
        num_tokens=1024,
        codebook_dim=codebook_width,
        hidden_dim=hidden,
        num_resnet_blocks=3,
        kernel_size=3,
        num_layers=2,
        use_transposed_convs=False,
    )


def build_decoder(latent_width: int, speaker_width: int, width: int) -> HifiDecoder:
    """Build the vocoder with a speaker encoder of the published size."""
    return HifiDecoder(
        decoder_input_dim=latent_width,
        d_vector_dim=speaker_width,
        upsample_initial_channel_decoder=width,
    )


def build_speaker(
    blocks: tuple[int, ...], widths: tuple[int, ...], embedding: int
) -> ResNetSpeakerEncoder:
    """Build the speaker encoder with the published front end."""
    audio = HifiDecoder(upsample_initial_channel_decoder=32).speaker_encoder_audio_config
    return ResNetSpeakerEncoder(
        input_dim=64,
        proj_dim=embedding,
        layers=list(blocks),
        num_filters=list(widths),
        log_input=True,
        use_torch_spec=True,
        audio_config=audio,
    )


def shapes_of(module: nn.Module) -> dict[str, str]:
    """Return the packed shapes of what a published file holds of this module."""
    state = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    packed = inputs.pack(state)
    assert inputs.unpack(packed) == state
    return packed


def full_shapes() -> dict[str, dict[str, str]]:
    """Return keys and shapes of the published size, packed."""
    with torch.device("meta"):
        gpt = build_gpt(30, 1024, 16, 6681, 402, 605)
    decoder = build_decoder(1024, 512, 512)
    return {
        "gpt": shapes_of(gpt),
        "dvae": shapes_of(build_dvae()),
        "vocoder": shapes_of(decoder.waveform_decoder),
        "speaker": shapes_of(decoder.speaker_encoder),
    }


def small_shapes(gpt: GPT) -> dict[str, dict[str, str]]:
    """Return keys and shapes of the networks whose weights the golden numbers are for."""
    return {
        "gpt": shapes_of(gpt),
        "dvae": shapes_of(build_dvae(**inputs.DVAE)),
        "vocoder": shapes_of(build_decoder(**inputs.VOCODER).waveform_decoder),
        "speaker": shapes_of(build_speaker(**inputs.SPEAKER)),
    }


@torch.no_grad()
def front_ends(folder: Path) -> Tensors:
    """Return both mels, and the codes of the small and of the published DVAE."""
    torch.save(inputs.mel_stats(), folder / "stats.pth")
    stats = str(folder / "stats.pth")
    audio = inputs.speech("front end", 2.0, 22050)
    dvae_mel = TorchMelSpectrogram(mel_norm_file=stats, sampling_rate=22050)(audio)
    conditioning_mel = TorchMelSpectrogram(
        filter_length=2048, win_length=1024, sampling_rate=22050, mel_norm_file=stats
    )(audio)
    cloning_mel = wav_to_mel_cloning(
        audio,
        mel_norms=inputs.mel_stats(),
        n_fft=2048,
        hop_length=256,
        win_length=1024,
    )
    assert torch.equal(cloning_mel, conditioning_mel)
    small, full = filled(build_dvae(**inputs.DVAE)), filled(build_dvae())
    noise = inputs.noise_mel()
    return {
        "mel.dvae": dvae_mel,
        "mel.conditioning": conditioning_mel,
        "codes.small": small.get_codebook_indices(dvae_mel),
        "codes.full": full.get_codebook_indices(dvae_mel),
        "codes.small.noise": small.get_codebook_indices(noise),
        "codes.full.noise": full.get_codebook_indices(noise),
    }


@torch.no_grad()
def conditioning(gpt: GPT) -> Tensors:
    """Return the latents of one reference. (1, 32, D)"""
    mel = inputs.training_clips()[0]["reference"][None]
    return {"conditioning": gpt.get_style_emb(mel).transpose(1, 2)}


def _padded(values: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(values, batch_first=True)


def training(gpt: GPT, name: str) -> Tensors:
    """Return losses and gradients of a step without dropout; `masked`: with prompts from the clip.

    Evaluation mode changes nothing but dropout here.
    """
    clips = inputs.training_clips()
    codes = [clip["codes"] for clip in clips]
    references = torch.stack([clip["reference"] for clip in clips])[:, None]
    segments = torch.stack([clip["masked"] for clip in clips]) * gpt.code_stride_len
    masked = name == "masked"
    gpt.zero_grad()
    text, audio, _ = gpt(
        _padded([clip["tokens"] for clip in clips]),
        torch.tensor([len(clip["tokens"]) for clip in clips]),
        _padded(codes),
        # A fraction of a code's audio is a whole code.
        torch.tensor([len(each) * gpt.code_stride_len - 7 for each in codes]),
        cond_mels=references,
        cond_idxs=segments if masked else None,
        cond_lens=None if masked else torch.tensor([references.shape[-1] * 256] * len(clips)),
    )
    (0.01 * text + audio).backward()
    found = {f"{name}.loss.text": text.detach(), f"{name}.loss.audio": audio.detach()}
    for key, parameter in gpt.named_parameters():
        if parameter.grad is not None:
            found[f"{name}.gradient.{key}"] = parameter.grad.clone()
    return found


@torch.no_grad()
def visible_stop(gpt: GPT) -> Tensors:
    """Return the losses with the text's stop token visible, as it is when the model speaks.

    The original has no such training step; its own embeddings, trunk and heads are put together
    here, one clip at a time, with the targets that its training step has.
    """
    sums = {"text": torch.zeros(()), "audio": torch.zeros(())}
    totals = {"text": 0, "audio": 0}
    for clip in inputs.training_clips():
        tokens = F.pad(clip["tokens"], (0, 1), value=gpt.stop_text_token)
        codes = F.pad(clip["codes"], (0, 4), value=gpt.stop_audio_token)
        text_in = F.pad(tokens, (1, 0), value=gpt.start_text_token)[None]
        codes_in = F.pad(codes[:-1], (1, 0), value=gpt.start_audio_token)[None]
        text_logits, audio_logits = gpt.get_logits(
            gpt.text_embedding(text_in) + gpt.text_pos_embedding(text_in),
            gpt.text_head,
            gpt.mel_embedding(codes_in) + gpt.mel_pos_embedding(codes_in),
            gpt.mel_head,
            prompt=gpt.get_style_emb(clip["reference"][None]).transpose(1, 2),
        )
        text_logits = text_logits[..., : len(tokens)]
        sums["text"] += F.cross_entropy(text_logits, tokens[None], reduction="sum")
        sums["audio"] += F.cross_entropy(audio_logits, codes[None], reduction="sum")
        totals["text"] += len(tokens)
        totals["audio"] += len(codes)
    return {f"visible_stop.loss.{name}": value / totals[name] for name, value in sums.items()}


@torch.no_grad()
def generation(gpt: GPT) -> Tensors:
    """Return greedy codes until the limit and until a stop, sampling scores, and audio latents."""
    latents = gpt.get_style_emb(inputs.training_clips()[0]["reference"][None]).transpose(1, 2)
    text = inputs.sentence()[None]
    gpt.init_gpt_for_inference(kv_cache=True)
    greedy: dict[str, Any] = {"do_sample": False, "num_beams": 1}
    plain = gpt.generate(latents, text, **greedy)
    penalised = gpt.generate(latents, text, repetition_penalty=5.0, **greedy)
    torch.manual_seed(0)
    sampled, details = gpt.generate(
        latents,
        text,
        do_sample=True,
        temperature=0.75,
        top_k=50,
        top_p=0.85,
        repetition_penalty=5.0,
        max_new_tokens=12,
        output_scores=True,
        return_dict_in_generate=True,
    )
    with_stop = gpt.mel_head.bias.clone()
    with_stop[inputs.STOP_AUDIO] += inputs.STOP_BIAS
    gpt.mel_head.bias.copy_(with_stop)
    stopped = gpt.generate(latents, text, repetition_penalty=5.0, **greedy)
    with_stop[inputs.STOP_AUDIO] -= inputs.STOP_BIAS
    gpt.mel_head.bias.copy_(with_stop)
    hidden = gpt(
        text,
        torch.tensor([text.shape[1]]),
        penalised,
        torch.tensor([penalised.shape[1] * gpt.code_stride_len]),
        cond_latents=latents,
        return_latent=True,
    )
    del gpt.gpt_inference, gpt.gpt.wte
    return {
        "generation.greedy": plain[0],
        "generation.penalised": penalised[0],
        "generation.stopped": stopped[0],
        "generation.sampled": sampled[0],
        "generation.scores": torch.cat(details.scores),
        "latents": hidden,
    }


@torch.no_grad()
def frozen() -> Tensors:
    """Return audio and speaker embeddings, small and of the published size."""
    small = filled(build_decoder(**inputs.VOCODER))
    full = filled(build_decoder(1024, 512, 512))
    # Keys below the decoder carry a prefix; the drawn weights do not.
    for module in (small.waveform_decoder, full.waveform_decoder, full.speaker_encoder):
        filled(module)
    small_latents, small_voice = inputs.vocoder_inputs(
        inputs.VOCODER["latent_width"], inputs.VOCODER["speaker_width"]
    )
    full_latents, full_voice = inputs.vocoder_inputs(1024, 512)
    small_speaker = filled(build_speaker(**inputs.SPEAKER))
    audio = inputs.speech("speaker", 1.5, 16000)
    return {
        "vocoder.small": small(small_latents, g=small_voice).flatten(),
        "vocoder.full": full(full_latents, g=full_voice).flatten(),
        "speaker.small": small_speaker(audio.clone(), l2_norm=True),
        "speaker.full": full.speaker_encoder(audio.clone(), l2_norm=True),
    }


def folder_config() -> XttsConfig:
    """Return the settings of a folder with the small GPT and frozen parts of published size."""
    sizes = inputs.GPT
    arguments = XttsArgs(
        gpt_layers=sizes["layers"],
        gpt_n_model_channels=sizes["width"],
        gpt_n_heads=sizes["heads"],
        gpt_number_text_tokens=sizes["num_text_tokens"],
        gpt_start_text_token=261,
        gpt_stop_text_token=0,
        gpt_num_audio_tokens=1026,
        gpt_start_audio_token=inputs.START_AUDIO,
        gpt_stop_audio_token=inputs.STOP_AUDIO,
        gpt_max_text_tokens=sizes["max_text_tokens"],
        gpt_max_audio_tokens=sizes["max_audio_tokens"],
        gpt_use_perceiver_resampler=True,
        decoder_input_dim=sizes["width"],
    )
    return XttsConfig(model_args=arguments, audio=XttsAudioConfig())


def make(folder: Path) -> None:
    """Write release/ (config pickled, as published) and trained/ (as training leaves it)."""
    config = folder_config()
    model = Xtts(config)
    for part in (
        model.gpt,
        model.hifigan_decoder.waveform_decoder,
        model.hifigan_decoder.speaker_encoder,
    ):
        filled(part)
    model.mel_stats.copy_(inputs.mel_stats())
    dvae = filled(build_dvae())
    audio = inputs.speech("voice", 3.0, 22050)
    voice = {
        "gpt_cond_latent": model.get_gpt_cond_latents(audio, 22050, length=6, chunk_length=6),
        "speaker_embedding": model.get_speaker_embedding(audio, 22050),
    }
    state = model.state_dict()
    for name in ("release", "trained"):
        target = folder / name
        target.mkdir()
        config.save_json(str(target / "config.json"))
        (target / "vocab.json").write_text(inputs.vocabulary(), encoding="utf-8")
        torch.save({"A voice": voice}, target / "speakers_xtts.pth")
        torch.save(dvae.state_dict(), target / "dvae.pth")
        torch.save(inputs.mel_stats(), target / "mel_stats.pth")
    with _published_class_names():
        torch.save({"config": config, "model": state}, folder / "release" / "model.pth")
    trained = {f"xtts.{key}": value for key, value in state.items()}
    trained |= {f"dvae.{key}": value for key, value in dvae.state_dict().items()}
    training_state = {
        "config": config.to_dict(),
        "model": trained,
        "optimizer": [],
        "scheduler": None,
        "scaler": None,
        "step": 10,
        "epoch": 1,
        "date": "today",
        "model_loss": 4.0,
    }
    torch.save(training_state, folder / "trained" / "best_model_10.pth")


@contextlib.contextmanager
def _published_class_names() -> Iterator[None]:
    """Pickle classes under the module they were in when the model was published."""
    classes = (XttsArgs, XttsAudioConfig)
    modules = [each.__module__ for each in classes]
    for each in classes:
        each.__module__ = Xtts.__module__
    try:
        yield
    finally:
        for each, module in zip(classes, modules, strict=True):
            each.__module__ = module


@torch.inference_mode()
def speak(folder: Path) -> None:
    """Load the folder strictly as upstream's users do and write what it says beside it."""
    config = XttsConfig()
    config.load_json(str(folder / "config.json"))
    model = Xtts(config)
    model.load_checkpoint(config, checkpoint_dir=str(folder), eval=True, strict=True)
    assert model.speaker_manager is not None
    latents, speaker = next(iter(model.speaker_manager.speakers.values())).values()
    spoken = model.inference(
        inputs.TEXT, "en", latents, speaker, do_sample=False, repetition_penalty=5.0
    )
    result = {
        "tokens": torch.tensor(model.tokenizer.encode(inputs.TEXT, "en")),
        "gpt_latents": torch.from_numpy(spoken["gpt_latents"]),
        "audio": torch.from_numpy(spoken["wav"]),
    }
    save_file(result, os.fspath(folder / "spoken.safetensors"))


if __name__ == "__main__":
    main()
