"""Write a folder that XTTS tools can load, and the same weights as safetensors."""

import json
from pathlib import Path

import torch
from torch import Tensor

from trainer.core.run_config import WRITTEN_BY
from trainer.core.version import __version__
from trainer.models._conversion_cache import LICENCE_FILE
from trainer.models._json import Json
from trainer.models._weights import publishing, save_tensors
from trainer.models.xtts.checkpoint.base_folder import MEL_STATS, Base
from trainer.models.xtts.checkpoint.shapes import languages_of, token_ids

State = dict[str, Tensor]

# coqui-tts's trainer adds these to a config.json: paths on the training machine, and settings that
# a finished model does not use.
_TRAINING_ONLY = (
    "min_conditioning_length", "max_conditioning_length", "gpt_loss_text_ce_weight",
    "gpt_loss_mel_ce_weight", "debug_loading_failures", "max_wav_length", "max_text_length",
    "mel_norm_file", "dvae_checkpoint", "xtts_checkpoint", "vocoder",
)  # fmt: skip


def publish_folder(
    folder: Path,
    *,
    gpt_state: State,
    base: Base,
    config: Json,
    vocab_json: str,
    voices: dict[str, tuple[Tensor, Tensor]],
    licence: str,
    bf16: bool = False,
) -> None:
    """Write model.pth, model.safetensors, config.json, vocab.json, speakers_xtts.pth and more.

    Everything but the GPT is that of the base; `bf16` halves the size of the GPT. voices: latents
    (1, 32, D) and embedding (1, S, 1) by name. Existing files are replaced atomically.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    ids = token_ids(vocab_json, folder / "vocab.json")
    if bf16:
        gpt_state = {name: value.to(torch.bfloat16) for name, value in gpt_state.items()}
    state = {f"gpt.{name}": value for name, value in gpt_state.items()}
    state |= {f"hifigan_decoder.{name}": value for name, value in base.voice_state().items()}
    state[MEL_STATS] = base.mel_stats()
    rows = len(gpt_state["text_embedding.weight"])
    texts = {
        "config.json": json.dumps(_finish(config, ids, rows), indent=4),
        "vocab.json": vocab_json,
        LICENCE_FILE: licence + "\n",
    }
    with publishing(folder) as partial:
        save_tensors(partial / "model.safetensors", state, {WRITTEN_BY: __version__})
        write_published(partial, state, base.dvae_state() if base.has_dvae else {}, voices)
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")


def write_published(
    folder: Path,
    state: State,
    dvae: State,
    voices: dict[str, tuple[Tensor, Tensor]],
    beside: Json | None = None,
) -> None:
    """Write the pickles of the published folder: model, voices, and the DVAE for training.

    They are tensors in plain containers, so that `torch.load` can read them with weights_only.
    `beside` is stored in model.pth, before the weights.
    """
    torch.save((beside or {}) | {"model": _own_memory(state)}, folder / "model.pth")
    mel_stats = _own_memory({MEL_STATS: state[MEL_STATS]})[MEL_STATS]
    torch.save(mel_stats, folder / "mel_stats.pth")
    speakers = {
        # Upstream reads the two values by their order, not by their names.
        name: _own_memory({"gpt_cond_latent": latents, "speaker_embedding": embedding})
        for name, (latents, embedding) in voices.items()
    }
    torch.save(speakers, folder / "speakers_xtts.pth")
    if dvae:
        torch.save(_own_memory(dvae), folder / "dvae.pth")


def _own_memory(state: State) -> State:
    """Return the tensors; views are copied, because torch.save writes their whole storage."""
    own = {}
    for name, value in state.items():
        value = value.detach().cpu().contiguous()
        size = value.numel() * value.element_size()
        own[name] = value if value.untyped_storage().nbytes() == size else value.clone()
    return own


def _finish(config: Json, ids: dict[str, int], rows: int) -> Json:
    """Return the config.json of a finished model that has `rows` text tokens."""
    arguments = {
        name: value
        for name, value in dict(config.get("model_args", {})).items()
        if name not in _TRAINING_ONLY
    }
    arguments |= {"gpt_number_text_tokens": rows, "tokenizer_file": ""}
    known = list(config.get("languages", []))
    added = [language for language in languages_of(ids) if language not in known]
    return config | {"model": "xtts", "model_args": arguments, "languages": known + added}
