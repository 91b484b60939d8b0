"""Load and export FastSpeech 2 weights: Timbre's own folders and published .pth.tar files.

When symbols or speakers of a base differ from the data's, embedding rows are mapped by name.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer.core.errors import CheckpointError
from trainer.models._weights import (
    FACTS_FILE,
    WEIGHTS_FILE,
    describe_mismatch,
    require_format,
    shapes_of,
    write_own,
)
from trainer.models.fastspeech2.checkpoint.published import PUBLISHED_ALIASES, describe_published
from trainer.models.fastspeech2.facts import BaseFacts, Facts
from trainer.models.fastspeech2.network import FastSpeech2, Sizes
from trainer.models.fastspeech2.options import Options, loss_weights
from trainer.safe_unpickle import read_pickle

FORMAT = 1
State = dict[str, Tensor]


def load(base: Path | None, options: Options, facts: Facts) -> FastSpeech2:
    """Build the network that `facts` describe, with the weights of the base or new ones.

    Raises:
        CheckpointError: the base is missing, damaged or of another shape.
    """
    sizes = Sizes(**facts["sizes"])
    model = FastSpeech2(sizes, len(facts["symbols"]), len(facts["speakers"]))
    model.loss_weights = loss_weights(options)
    if base is None:
        # A base brings its own bins among its weights.
        _set_bins(model, facts)
        return model
    base_facts, state = read_base(base)
    require_same_shape(base_facts, sizes, base)
    state = _map_rows(state, model, base_facts, facts)
    if misfit := describe_mismatch(shapes_of(state), shapes_of(model.state_dict())):
        raise CheckpointError(
            f"{base} does not match this network; {misfit}. Choose a checkpoint of the same size."
        )
    model.load_state_dict(state)
    return model


def export(
    model: nn.Module,
    facts: Facts,
    folder: Path,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write model.safetensors and config.json to a folder that `load` can read."""
    # `weights` are given if those that evaluation uses differ from those that train, such as
    # an average (docs/decisions/0015).
    write_own(folder, weights or model.state_dict(), facts)


def read_base(base: Path) -> tuple[BaseFacts, State]:
    """Read the facts and weights of a folder with model.safetensors, or of a .pth.tar file.

    Raises:
        CheckpointError: neither is there, or it cannot be read.
    """
    if (base / WEIGHTS_FILE).is_file():
        return _read_folder(base)
    if base.is_dir():
        # Of several published files none is the obvious one, so the message below asks for one.
        candidates = sorted(base.glob("*.pth.tar"))
        if len(candidates) == 1:
            base = candidates[0]
    if not base.is_file():
        raise CheckpointError(
            f"{base} is not a FastSpeech 2 checkpoint. Choose a folder that contains "
            f"{WEIGHTS_FILE} and {FACTS_FILE}, or a published .pth.tar file."
        )
    return _read_published(base)


def require_same_shape(facts: BaseFacts, sizes: Sizes, base: Path) -> None:
    """Reject a base whose network has other sizes.

    Raises:
        CheckpointError: the message says which sizes differ and which option to change.
    """
    # Dropout changes no weights, so it may differ.
    unlearned = {"dropout": 0.0, "predictor_dropout": 0.0}
    theirs = replace(Sizes(**facts["sizes"]), **unlearned).to_json()
    ours = replace(sizes, **unlearned).to_json()
    differing = [name for name in ours if ours[name] != theirs[name]]
    if differing:
        listed = ", ".join(f"{name} {theirs[name]} (not {ours[name]})" for name in differing)
        raise CheckpointError(
            f"The network in {base} has another size: {listed}. "
            f"Set Size to '{facts.get('size', 'standard')}' with matching Blocks, "
            "or choose another base checkpoint."
        )


def _read_folder(base: Path) -> tuple[BaseFacts, State]:
    try:
        facts = json.loads((base / FACTS_FILE).read_text(encoding="utf-8"))
        state = load_file(base / WEIGHTS_FILE)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{base} cannot be read: {error}. Copy the checkpoint again or choose another one."
        ) from None
    if not isinstance(facts, dict) or facts.get("family") != "fastspeech2":
        raise CheckpointError(
            f"{base / FACTS_FILE} does not describe a FastSpeech 2 checkpoint. "
            "Choose the family that the checkpoint was made with."
        )
    require_format(facts, base, FORMAT)
    return cast(BaseFacts, facts), state


def read_tensors(path: Path) -> object:
    """Read a file written by torch.save in a child process that accepts only tensors.

    Raises:
        CheckpointError: the file is missing, damaged, not a torch file, or could run code.
    """
    try:
        found = path.stat()
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{path} cannot be read: {reason}. Copy the file again.") from None
    # Time and size are part of the cache key, so a file that was replaced is read again.
    return _read_once(path.absolute(), found.st_mtime_ns, found.st_size)


# Two files at most: the base and the HiFi-GAN generator.
@lru_cache(maxsize=2)
def _read_once(path: Path, changed_ns: int, size: int) -> object:
    """Cache the tensors: a run reads its base several times, and a child takes seconds to start."""
    return read_pickle(path)


def _read_published(path: Path) -> tuple[BaseFacts, State]:
    content = read_tensors(path)
    state = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or "encoder.src_word_emb.weight" not in state:
        raise CheckpointError(
            f"{path} contains no FastSpeech 2 weights; expected a state_dict with "
            "encoder.src_word_emb.weight, at the top level or under 'model'. Choose another file."
        )
    return describe_published(state), dict(state)


def _set_bins(model: FastSpeech2, facts: Facts) -> None:
    """Spread the bins of a new quantized network evenly over the range in the corpus."""
    adaptor = model.variance_adaptor
    if adaptor.is_quantised:
        ranges = {"pitch": facts.get("pitch_range"), "energy": facts.get("energy_range")}
        for name, found in ranges.items():
            bins = adaptor.get_buffer(f"{name}_bins")
            assert found is not None  # every survey writes them
            low, high = found
            bins.copy_(torch.linspace(low, high, len(bins)))


def _map_rows(state: State, model: FastSpeech2, base_facts: BaseFacts, facts: Facts) -> State:
    """Give each symbol and speaker its row of the base; new ones get the mean of all rows."""
    state = dict(state)
    key = "encoder.src_word_emb.weight"
    if facts["symbols"] != base_facts["symbols"] and key in state:
        # English checkpoints were trained on ARPAbet, so letters start from the nearest sound.
        aliases = PUBLISHED_ALIASES if base_facts.get("has_untrained_letters") else {}
        state[key] = _rows_by_name(state[key], base_facts["symbols"], facts["symbols"], aliases)
    names = [voice["name"] for voice in facts["speakers"]]
    base_names = [voice["name"] for voice in base_facts["speakers"]]
    if model.speaker_emb is None:
        state.pop("speaker_emb.weight", None)
    elif "speaker_emb.weight" not in state:
        # A base with one voice has no speaker table. Adding zeros leaves its output unchanged.
        state["speaker_emb.weight"] = torch.zeros_like(model.speaker_emb.weight)
    elif names != base_names:
        table = state["speaker_emb.weight"]
        state["speaker_emb.weight"] = _rows_by_name(table, base_names, names, {})
    return state


def _rows_by_name(
    table: Tensor, known: Sequence[str], wanted: Sequence[str], aliases: dict[str, str]
) -> Tensor:
    """Rearrange a table (known, D) to (wanted, D); a known alias takes precedence over the name."""
    rows = {name: row for row, name in enumerate(known)}
    # New names start from what the trained rows have in common; chosen by hand.
    average = table.mean(dim=0)
    found = []
    for name in wanted:
        row = rows.get(aliases.get(name, name), rows.get(name))
        found.append(average if row is None else table[row])
    return torch.stack(found)
