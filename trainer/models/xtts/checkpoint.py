"""Weights in and out: a GPT from a base folder or an own checkpoint, and checkpoints written."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.data.audio import write_wav
from trainer.errors import CheckpointError
from trainer.models.xtts.generation import Sampling
from trainer.models.xtts.options import Options
from trainer.models.xtts.publish import publish_folder
from trainer.models.xtts.sizes import SAMPLE_RATE, Sizes
from trainer.models.xtts.start import FACTS_FILE, FROZEN_FILES, WEIGHTS_FILE, open_start
from trainer.models.xtts.vocabulary import map_rows
from trainer.models.xtts.voice import VOICES_FILE, SpeakingGpt, Voice, own_model

_TEXT_TABLES = ("text_embedding.weight", "text_head.weight", "text_head.bias")


def load(base: Path | None, options: Options, facts: dict[str, Any]) -> SpeakingGpt:
    """Build the GPT that `facts` describe, with the base's weights where its size is the same.

    Raises:
        CheckpointError: the base is absent, damaged or of another shape.
    """
    sizes = Sizes.from_json(facts["sizes"])
    start = open_start(base)
    if start.sizes.gpt.layers == sizes.gpt.layers:
        with torch.device("meta"):
            model = SpeakingGpt(sizes.gpt, options.dropout)
        # Training needs fp32 weights, whatever the folder holds.
        state = {name: value.float() for name, value in start.gpt_state().items()}
        state = _map_text(state, start.vocab_json, facts)
        _require_same_shapes(state, model.state_dict(), base)
        model.load_state_dict(state, assign=True)
    else:
        model = SpeakingGpt(sizes.gpt, options.dropout)
    configure(model, options)
    model.sampling = Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        repetition_penalty=options.repetition_penalty,
    )
    kept = base / VOICES_FILE if base is not None else None
    model.voice = Voice(start, facts["speakers"], kept)
    return model


def configure(model: SpeakingGpt, options: Options) -> None:
    """Set what the options say of training a network, whatever its weights."""
    model.loss_weights = {"text_ce": options.text_weight, "mel_ce": options.mel_weight}
    model.upstream_masking = options.upstream_masking
    _freeze(model, options.freeze)


def export(
    model: nn.Module,
    facts: dict[str, Any],
    folder: Path,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write all that `load` needs; the frozen networks are linked, not copied, where possible."""
    gpt = own_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_on_host(weights or gpt.state_dict()), folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).chmod(0o644)
    with torch.no_grad():
        gpt.voice.save(folder / VOICES_FILE)
    for name in FROZEN_FILES:
        _link(gpt.voice.base.folder / name, folder / name)
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (folder / FACTS_FILE).write_text(text + "\n", encoding="utf-8")


@torch.no_grad()
def publish(model: nn.Module, facts: dict[str, Any], folder: Path, bf16: bool) -> None:
    """Write the folder that XTTS tools load: model.pth, config.json, vocab.json, speakers.

    Raises:
        DataError: the recordings of every speaker are gone.
    """
    gpt = own_model(model).eval()
    speakers = list(gpt.voice.speakers)
    names = [name for name in speakers if gpt.voice.can_speak(name)] or speakers
    first = gpt.voice.reference(names[0])
    write_wav(folder / "reference.wav", first.wave.numpy(), SAMPLE_RATE)
    voices = {
        name: (
            gpt.voice.latents(gpt, name).cpu(),
            gpt.voice.reference(name).embedding[None, :, None].clone(),
        )
        for name in names
    }
    publish_folder(
        folder,
        gpt_state=_on_host(gpt.state_dict()),
        base=gpt.voice.base,
        config=facts["config"],
        vocab_json=facts["vocab"],
        voices=voices,
        licence=facts["licence"],
        bf16=bf16,
    )


def terms(base: Path | None, options: Options) -> str:
    """Return the licence of a base's weights, in a sentence."""
    return open_start(base).licence


def _on_host(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def _map_text(state: dict[str, Tensor], old_vocab: str, facts: dict[str, Any]) -> dict[str, Tensor]:
    """Give every token its row of the base; new ones the mean of those they are related to."""
    if facts["vocab"] == old_vocab:
        return state
    related = {int(new): old for new, old in facts["related"].items()}
    mapped = {
        name: map_rows(state[name], old_vocab, facts["vocab"], related)
        for name in _TEXT_TABLES
        if name in state
    }
    return state | mapped


def _require_same_shapes(
    state: dict[str, Tensor], expected: dict[str, Tensor], base: Path | None
) -> None:
    parts = {
        "missing": [name for name in expected if name not in state],
        "unknown": [name for name in state if name not in expected],
        "of another shape": [
            f"{name} {tuple(state[name].shape)} instead of {tuple(value.shape)}"
            for name, value in expected.items()
            if name in state and state[name].shape != value.shape
        ],
    }
    found = [f"{what}: {', '.join(names[:3])}" for what, names in parts.items() if names]
    if found:
        raise CheckpointError(
            f"The GPT in {base} does not fit ({'; '.join(found)}). Take an unchanged XTTS v2 "
            "folder, with the vocab.json that belongs to its model."
        )


def _freeze(model: SpeakingGpt, what: str) -> None:
    parts = {
        "conditioning": ["conditioning_encoder", "conditioning_perceiver"],
        "embeddings": [
            "text_embedding", "mel_embedding", "text_pos_embedding", "mel_pos_embedding"
        ],
    }  # fmt: skip
    parts |= {"none": [], "both": parts["conditioning"] + parts["embeddings"]}
    for name in parts[what]:
        model.get_submodule(name).requires_grad_(False)


def _link(source: Path, target: Path) -> None:
    """Make a second name for a file, or a copy where the file system knows no links."""
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)
