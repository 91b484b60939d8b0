"""The original's half of the comparison: runs in an environment that holds what IndexTTS-2 needs.

    PYTHONPATH=UPSTREAM python _indextts2_side.py compute FOLDER
    PYTHONPATH=UPSTREAM python _indextts2_side.py hear FOLDER     writes a w2v-bert-2.0 and a codec
    PYTHONPATH=UPSTREAM python _indextts2_side.py load FOLDER     loads FOLDER/gpt.pth, strictly
    PYTHONPATH=UPSTREAM python _indextts2_side.py speed FOLDER    times steps, batch as padded, of
                                                              settings named on standard input

The losses are put together as the community's trainer (train_gpt_v2.py) does it, from the
original's own methods, one clip at a time: in a batch the audio would attend to text padding.
"""

import argparse
import importlib.metadata
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import indextts2_inputs as inputs
import numpy as np
import torch
import torch.nn.functional as F
import yaml
from indextts.gpt.model_v2 import UnifiedVoice
from indextts.utils.maskgct.models.codec.kmeans.repcodec_model import RepCodec
from safetensors.torch import save_file, save_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import SeamlessM4TFeatureExtractor, Wav2Vec2BertConfig, Wav2Vec2BertModel
from xtts_inputs import pack

PACKAGES = ("torch", "transformers")
FULL = {
    "layers": 24, "model_dim": 1280, "heads": 20, "max_mel_tokens": 1815, "max_text_tokens": 600,
    "number_text_tokens": 12000, "condition_type": "conformer_perceiver",
    "condition_module": {
        "output_size": 512, "linear_units": 2048, "attention_heads": 8, "num_blocks": 6,
        "input_layer": "conv2d2", "perceiver_mult": 2,
    },
    "emo_condition_module": {
        "output_size": 512, "linear_units": 1024, "attention_heads": 4, "num_blocks": 4,
        "input_layer": "conv2d2", "perceiver_mult": 2,
    },
}  # fmt: skip


def main() -> None:
    """Run one command; results lie beside the inputs as safetensors and JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("compute", "hear", "load", "speed"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    commands = {"compute": compute, "hear": hear, "load": load, "speed": speed}
    commands[arguments.command](arguments.folder)


def compute(folder: Path) -> None:
    """Write expected.safetensors and expected.json."""
    torch.manual_seed(0)
    model = UnifiedVoice(**inputs.GPT, checkpointing=False)
    fill(model)
    model.eval()
    found = voices(model) | training(model, from_features=False)
    found |= training(model, from_features=True) | codes() | filterbanks()
    with torch.device("meta"):
        full = shapes_of(UnifiedVoice(**FULL))
    facts = {
        "shapes": {"full": full, "small": shapes_of(model)},
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES}
        | {"index-tts": "2.0.0"},
    }
    tensors = {name: value.detach().clone().contiguous() for name, value in found.items()}
    save_file(tensors, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(facts), encoding="utf-8")


def hear(folder: Path) -> None:
    """Write a small w2v-bert-2.0, statistics and a codec, and what the original's steps give."""
    torch.manual_seed(0)
    network = Wav2Vec2BertModel(Wav2Vec2BertConfig(**inputs.HEARING)).eval()
    network.save_pretrained(folder / "w2v-bert-2.0")
    width = inputs.HEARING["hidden_size"]
    stats = {"mean": torch.randn(width), "var": torch.rand(width) + 0.5}
    torch.save(stats, folder / "wav2vec2bert_stats.pt")
    codec = RepCodec(cfg=SimpleNamespace(**inputs.CODEC))
    fill(codec)
    save_model(codec.eval(), str(folder / "codec.safetensors"))
    extract, found = SeamlessM4TFeatureExtractor(), {}
    for wave in inputs.waves():
        made = extract(wave, sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            states = network(**made, output_hidden_states=True).hidden_states
        # Its get_emb, whose class cannot be had without all its weights.
        features = (states[17] - stats["mean"]) / torch.sqrt(stats["var"])
        valid = int(made["attention_mask"].sum())
        found[f"heard.features.{len(wave)}"] = features[0, :valid].clone()
        # Where frames come out odd, its codec hears one more of half a frame and padding.
        found[f"heard.codes.{len(wave)}"] = codec.quantize(features[:, :valid])[0].flatten().clone()
    save_file(found, folder / "expected_heard.safetensors")


def load(folder: Path) -> None:
    """Load what was written for the original, and write down what one row predicts."""
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    model = UnifiedVoice(**config["gpt"], checkpointing=False)
    model.load_state_dict(torch.load(folder / "gpt.pth", weights_only=True), strict=True)
    model.eval()
    found = training(model, from_features=True, with_gradients=False)
    save_file(
        {name: v.detach().clone() for name, v in found.items()}, folder / "loaded.safetensors"
    )


def speed(folder: Path) -> None:
    """Answer each line on standard input with the processor seconds of a step as it is taken there.

    `padded` is the step of the community's trainer; `bf16`, the same under autocast, since its fp16
    and scaler need a GPU; `kept` and `kept bf16`: without computing every block again.
    """
    # Its build leaves checkpointing on.
    models = {on: UnifiedVoice(**inputs.SPEED, checkpointing=on).train() for on in (True, False)}
    optimizers = {
        on: torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
        for on, model in models.items()
    }
    for line in sys.stdin:
        is_checkpointed = not line.startswith("kept")
        step = (models[is_checkpointed], optimizers[is_checkpointed])
        started = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in line):
            loss = padded_loss(step[0])
        take_step(*step, loss)
        print(time.process_time() - started, flush=True)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Do what follows the loss () of a step."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def padded_loss(model: UnifiedVoice) -> Tensor:
    """Return the weighted loss () of the timed batch, text and codes padded."""
    clips = inputs.speed_clips()
    ids = pad_sequence([torch.from_numpy(text) for text, _ in clips], batch_first=True)
    codes = pad_sequence([torch.from_numpy(audio) for _, audio in clips], batch_first=True)
    lengths = [torch.tensor([len(clip[place]) for clip in clips]) for place in (0, 1)]
    text, audio = padded_losses(model, ids, codes, lengths)
    return 0.2 * text + 0.8 * audio


def padded_losses(
    model: UnifiedVoice, ids: Tensor, codes: Tensor, lengths: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the mean losses of a batch whose ids (B, T_text) and codes (B, T) are padded."""
    sides = (
        (
            model.set_text_padding(ids.clone(), lengths[0]),
            model.start_text_token,
            model.stop_text_token,
        ),
        (
            model.set_mel_padding(codes.clone(), lengths[1]),
            model.start_mel_token,
            model.stop_mel_token,
        ),
    )
    (text_in, text_out), (audio_in, audio_out) = (
        model.build_aligned_inputs_and_targets(F.pad(values, (0, 1), value=stop), start, stop)
        for values, start, stop in sides
    )
    prompt = torch.zeros(len(ids), 34, inputs.SPEED["model_dim"])
    text = model.text_embedding(text_in) + model.text_pos_embedding(text_in)
    audio = model.mel_embedding(audio_in) + model.mel_pos_embedding(audio_in)
    logits = model.get_logits(prompt, text, model.text_head, audio, model.mel_head)
    losses = []
    for scores, targets, length in zip(logits, (text_out, audio_out), lengths, strict=True):
        mask = torch.arange(targets.shape[1])[None] < (length + 1)[:, None]
        losses.append(
            (F.cross_entropy(scores, targets, reduction="none") * mask).sum() / mask.sum()
        )
    return losses[0], losses[1]


def fill(module: nn.Module) -> None:
    """Give a module the drawn weights."""
    drawn = inputs.weights({name: tuple(v.shape) for name, v in module.state_dict().items()})
    module.load_state_dict(module.state_dict() | drawn)


def shapes_of(module: nn.Module) -> dict[str, str]:
    """Return the shape of every tensor, packed."""
    return pack({name: tuple(value.shape) for name, value in module.state_dict().items()})


def voices(model: UnifiedVoice) -> dict[str, Tensor]:
    """Return conditioning and emotion vector of both references."""
    features, lengths = inputs.features()
    with torch.no_grad():
        condition = model.get_conditioning(features.transpose(1, 2), lengths)
        emotion = model.get_emovec(features, lengths)
    return {"voice.condition": condition, "voice.emotion": emotion}


def training(
    model: UnifiedVoice, *, from_features: bool, with_gradients: bool = True
) -> dict[str, Tensor]:
    """Return both losses over both clips, and the gradients of their weighted sum."""
    features, lengths = inputs.features()
    if from_features:
        condition = model.get_conditioning(features.transpose(1, 2), lengths)
        emotion = model.get_emovec(features, lengths)
    else:
        condition = inputs.draw("condition", (2, 32, inputs.GPT["model_dim"]))
        emotion = inputs.draw("emotion", (2, inputs.GPT["model_dim"]))
    text, audio, counted = torch.zeros(()), torch.zeros(()), [0, 0]
    for row, (ids, codes) in enumerate(zip(inputs.TEXTS, inputs.CODES, strict=True)):
        one = losses_of(model, condition[row : row + 1], emotion[row : row + 1], ids, codes)
        text, audio = text + one[0], audio + one[1]
        counted = [counted[0] + len(ids) + 1, counted[1] + len(codes) + 1]
    text, audio = text / counted[0], audio / counted[1]
    name = "trained" if from_features else "training"
    found = {f"{name}.loss.text": text, f"{name}.loss.audio": audio}
    if not with_gradients:
        return found
    model.zero_grad()
    (0.2 * text + 0.8 * audio).backward()
    gradients = {
        f"{name}.gradient.{key}": value.grad
        for key, value in model.named_parameters()
        if value.grad is not None
    }
    return found | gradients


def losses_of(
    model: UnifiedVoice, condition: Tensor, emotion: Tensor, ids: list[int], codes: list[int]
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropies of one clip's text and audio."""
    text_inputs, text_targets = model.build_aligned_inputs_and_targets(
        F.pad(torch.tensor([ids]), (0, 1), value=model.stop_text_token),
        model.start_text_token,
        model.stop_text_token,
    )
    audio_inputs, audio_targets = model.build_aligned_inputs_and_targets(
        F.pad(torch.tensor([codes]), (0, 1), value=model.stop_mel_token),
        model.start_mel_token,
        model.stop_mel_token,
    )
    speed = torch.zeros(1, dtype=torch.long)
    one, zero = model.speed_emb(torch.ones_like(speed)), model.speed_emb(torch.zeros_like(speed))
    prompt = torch.cat([condition + emotion.unsqueeze(1), one.unsqueeze(1), zero.unsqueeze(1)], 1)
    text = model.text_embedding(text_inputs) + model.text_pos_embedding(text_inputs)
    audio = model.mel_embedding(audio_inputs) + model.mel_pos_embedding(audio_inputs)
    text_logits, audio_logits = model.get_logits(
        prompt, text, model.text_head, audio, model.mel_head
    )
    text_ce = F.cross_entropy(text_logits, text_targets, reduction="none")
    audio_ce = F.cross_entropy(audio_logits, audio_targets, reduction="none")
    return text_ce[:, : len(ids) + 1].sum(), audio_ce[:, : len(codes) + 1].sum()


def codes() -> dict[str, Tensor]:
    """Return the codes of the small codec."""
    codec = RepCodec(cfg=SimpleNamespace(**inputs.CODEC))
    fill(codec)
    found, _ = codec.eval().quantize(inputs.codec_features())
    return {"codec.codes": found.flatten()}


def filterbanks() -> dict[str, Tensor]:
    """Return the features (T, 160) of both waves as far as they are valid."""
    extractor = SeamlessM4TFeatureExtractor()
    found = {}
    for wave in inputs.waves():
        made = extractor(wave, sampling_rate=16000, return_tensors="np")
        valid = int(made["attention_mask"].sum())
        values = np.ascontiguousarray(made["input_features"][0, :valid])
        found[f"filterbank.{len(wave)}"] = torch.from_numpy(values).float()
    return found


if __name__ == "__main__":
    main()
