"""Load the GPT of XTTS from a base or one of our checkpoints; write and publish it."""

from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.core.errors import CheckpointError
from trainer.data.audio.audio_io import write_wav
from trainer.models._weights import describe_mismatch, link, on_host, shapes_of, write_own
from trainer.models.xtts.checkpoint.base_model import FROZEN_FILES, open_base_model
from trainer.models.xtts.checkpoint.export import publish_folder
from trainer.models.xtts.facts import Facts
from trainer.models.xtts.inference.generation import Sampling
from trainer.models.xtts.inference.voice import VOICES_FILE, SpeakingGpt, Voice, own_model
from trainer.models.xtts.network.sizes import SAMPLE_RATE, Sizes
from trainer.models.xtts.options import Options
from trainer.models.xtts.text.vocabulary import map_rows

_TEXT_TABLES = ("text_embedding.weight", "text_head.weight", "text_head.bias")


def load(base: Path | None, options: Options, facts: Facts) -> SpeakingGpt:
    """Build the GPT that `facts` describe, with the weights of the base if it has the same size.

    Raises:
        CheckpointError: the base is missing, damaged or of another shape.
    """
    sizes = Sizes.from_json(facts["sizes"])
    start = open_base_model(base)
    if start.sizes.gpt.layers == sizes.gpt.layers:
        # On the meta device, no time is spent on initial weights that are replaced below.
        with torch.device("meta"):
            model = SpeakingGpt(sizes.gpt, options.dropout)
        # Training needs fp32 weights, but a folder may have been exported in bf16.
        state = {name: value.float() for name, value in start.gpt_state().items()}
        state = _map_text(state, start.vocab_json, facts)
        if misfit := describe_mismatch(shapes_of(state), shapes_of(model.state_dict())):
            raise CheckpointError(
                f"The GPT in {base} does not match XTTS v2 ({misfit}). Choose an unmodified XTTS "
                "v2 folder, with the vocab.json that belongs to its model."
            )
        model.load_state_dict(state, assign=True)
    else:
        # The options small and medium train a new GPT; only the other networks are the base's.
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
    """Apply the options for training to a network, whatever its weights."""
    model.loss_weights = {"text_ce": options.text_weight, "mel_ce": options.mel_weight}
    model.upstream_masking = options.upstream_masking
    _freeze(model, options.freeze)


def export(
    model: nn.Module,
    facts: Facts,
    folder: Path,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write everything `load` needs; weights that are not trained are hard-linked if possible."""
    gpt = own_model(model)
    # `weights` are given if those that evaluation uses differ from those that train, such as
    # an average (docs/decisions/0015).
    write_own(folder, weights or gpt.state_dict(), facts)
    with torch.no_grad():
        gpt.voice.save(folder / VOICES_FILE)
    for name in FROZEN_FILES:
        link(gpt.voice.base.folder / name, folder / name)


@torch.no_grad()
def publish(model: nn.Module, facts: Facts, folder: Path, bf16: bool) -> None:
    """Write a folder that XTTS tools can load: model.pth, config.json, vocab.json, speakers.

    Raises:
        DataError: no speaker's recordings are left.
    """
    gpt = own_model(model).eval()
    speakers = list(gpt.voice.speakers)
    # If no speaker has recordings left, `reference` raises an error that names a missing file.
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
        gpt_state=on_host(gpt.state_dict()),
        base=gpt.voice.base,
        config=facts["config"],
        vocab_json=facts["vocab"],
        voices=voices,
        licence=facts["licence"],
        bf16=bf16,
    )


def terms(base: Path | None, options: Options) -> str:
    """Return a sentence with the licence of a base's weights."""
    return open_base_model(base).licence


def _map_text(state: dict[str, Tensor], old_vocab: str, facts: Facts) -> dict[str, Tensor]:
    """Give each token its row of the base; a new token gets the mean of related tokens' rows."""
    if facts["vocab"] == old_vocab:
        return state
    related = {int(new): old for new, old in facts["related"].items()}
    mapped = {
        name: map_rows(state[name], old_vocab, facts["vocab"], related)
        for name in _TEXT_TABLES
        if name in state
    }
    return state | mapped


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
