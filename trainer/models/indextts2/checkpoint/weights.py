"""Load the GPT of IndexTTS-2 from a base or one of our checkpoints; write and publish it."""

import base64
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.core.errors import CheckpointError
from trainer.models._weights import describe_mismatch, link, on_host, shapes_of, write_own
from trainer.models.indextts2.checkpoint.base_folder import Base
from trainer.models.indextts2.checkpoint.base_model import LINKED_FILES, open_base_model
from trainer.models.indextts2.checkpoint.export import DISCLAIMER, write_published
from trainer.models.indextts2.facts import Facts
from trainer.models.indextts2.network.codec import CODEC_LICENCE
from trainer.models.indextts2.network.gpt import UnifiedVoice
from trainer.models.indextts2.network.sizes import Sizes
from trainer.models.indextts2.options import Options
from trainer.models.indextts2.upstream.package import Original

W2V_BERT_LICENCE = "w2v-bert-2.0 was published under the MIT licence."

ORIGINAL_LICENCE = (
    "The original package and its s2mel network are under the bilibili model licence; it also uses "
    "MaskGCT's codec (CC-BY-NC-4.0), so its audio is for non-commercial use only."
)

_TEXT_TABLES = ("text_embedding.weight", "text_head.weight", "text_head.bias")


class FineTunedVoice(UnifiedVoice):
    """The GPT with the base that it came from; exports copy the base's other tensors unchanged."""

    start: Base
    original: Original


def load(base: Path | None, options: Options, facts: Facts) -> FineTunedVoice:
    """Build the GPT that `facts` describe with the weights of the base, in fp32.

    Raises:
        CheckpointError: the base is missing, damaged or of another shape.
    """
    start = open_base_model(base)
    # On the meta device, no time is spent on initial weights that are replaced below.
    with torch.device("meta"):
        model = network(options, facts)
    state = start.gpt_state()
    if model.with_conditioning:
        state |= start.conditioning_state()
    # A run with another bpe.model maps the text tables once; its own checkpoints already have it.
    if base64.b64decode(facts["bpe_model"]) != start.bpe_model and facts["text_rows"]:
        state |= {name: map_rows(state[name], facts["text_rows"]) for name in _TEXT_TABLES}
    if misfit := describe_mismatch(shapes_of(state), shapes_of(model.state_dict())):
        raise CheckpointError(
            f"The weights in {base} do not match this run ({misfit}). Choose the base that the run "
            "was started with."
        )
    # A base may be stored in bf16, but training needs fp32 weights.
    model.load_state_dict({name: value.float() for name, value in state.items()}, assign=True)
    model.start = start
    return model


def network(options: Options, facts: Facts) -> FineTunedVoice:
    """Return the network that `load` fills; its initial weights depend on the current device."""
    sizes = Sizes.from_json(facts["sizes"])
    is_trained = options.conditioning == "trained"
    model = FineTunedVoice(sizes, options.dropout, with_conditioning=is_trained)
    model.loss_weights = {"text_ce": options.text_weight, "mel_ce": options.mel_weight}
    model.original = Original(
        options.original_python,
        options.original_folder,
        options.original_reference,
        options.original_device,
        options.original_limit_s,
    )
    return model


def export(
    model: nn.Module,
    facts: Facts,
    folder: Path,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write everything `load` needs; weights that are not trained are hard-linked if possible."""
    own = own_model(model)
    write_own(folder, weights or own.state_dict(), facts)
    for name in LINKED_FILES:
        if (own.start.folder / name).is_file():
            link(own.start.folder / name, folder / name)


def publish(model: nn.Module, facts: Facts, folder: Path, bf16: bool) -> None:
    """Write gpt.pth, config.yaml and bpe.model; tensors that were not trained are unchanged."""
    own = own_model(model)
    trained = on_host(own.state_dict())
    if bf16:
        trained = {name: value.to(torch.bfloat16) for name, value in trained.items()}
    write_published(
        folder,
        # In this order, because trained conditioning replaces that of the base.
        own.start.conditioning_state() | trained,
        facts["config"],
        bpe_model=base64.b64decode(facts["bpe_model"]),
        licence=facts["licence"] if facts["is_random"] else f"{facts['licence']} {DISCLAIMER}",
    )


def terms(base: Path | None, options: Options) -> str:
    """Return sentences with the licences of all weights that are used."""
    found = [open_base_model(base).licence]
    if options.w2v_bert:
        found.append(W2V_BERT_LICENCE)
    if options.codec:
        found.append(CODEC_LICENCE)
    if options.original_folder:
        found.append(ORIGINAL_LICENCE)
    return " ".join(found)


def own_model(model: nn.Module) -> FineTunedVoice:
    """Return the model as this family's class.

    Raises:
        TypeError: it belongs to another family.
    """
    if not isinstance(model, FineTunedVoice):
        raise TypeError(f"expected FineTunedVoice, not {type(model).__name__}")
    return model


def map_rows(table: Tensor, rows: list[list[int]]) -> Tensor:
    """Convert a text table to another tokenizer.

    table: (V, D) or (V,). rows: for each new row the old rows to average; an empty list means all.
    Returns (V', D) or (V',).
    """
    # In float64 for precision, because this may average thousands of rows.
    overall = table.double().mean(dim=0)
    means = [table[row].double().mean(dim=0) if row else overall for row in rows]
    return torch.stack(means).to(table.dtype)
