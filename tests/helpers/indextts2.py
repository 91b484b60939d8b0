"""A corpus as the community's preprocessing writes it, and a small base folder, made of numbers."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.torch import load_file

from trainer.models.indextts2.checkpoint.base_folder import (
    CONDITIONING_FILE,
    GPT_FILE,
    open_base,
)
from trainer.models.indextts2.checkpoint.export import write_published
from trainer.models.indextts2.network.sizes import TINY
from trainer.models.indextts2.text.tokenizer import make_tokenizer, split_characters

Row = dict[str, Any]


def write_arrays(folder: Path, number: int) -> Row:
    """Write the four arrays of a clip and return its row of a single manifest."""
    rng = np.random.default_rng(number)
    num_codes, num_tokens = 40 + 5 * number, 6 + number
    arrays = {
        "codes": rng.integers(0, 20, num_codes).astype(np.int32),
        "condition": rng.standard_normal((TINY.num_latents, TINY.width)).astype(np.float32),
        "emo_vec": rng.standard_normal(TINY.width).astype(np.float32),
        "text_ids": rng.integers(3, 259, num_tokens).astype(np.int32),
    }
    row: Row = {"id": f"clip{number}", "text": f"text {number}", "speaker": "ann", "language": "ko"}
    for name, values in arrays.items():
        path = folder / name / f"clip{number}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, values)
        row[f"{name}_path"] = str(path.relative_to(folder))
    lengths = {"text_len": num_tokens, "code_len": num_codes, "condition_len": TINY.num_latents}
    return row | lengths | {"duration": num_codes / 50}


def pair(target: Row, prompt: Row) -> Row:
    """Return the row of a paired manifest."""
    return {
        "id": f"{target['id']}__{prompt['id']}",
        "speaker": target["speaker"],
        "prompt_id": prompt["id"],
        "prompt_condition_path": prompt["condition_path"],
        "prompt_condition_len": prompt["condition_len"],
        "prompt_emo_vec_path": prompt["emo_vec_path"],
        "prompt_audio_path": "",
        "target_id": target["id"],
        "target_text": target["text"],
        "target_text_ids_path": target["text_ids_path"],
        "target_text_len": target["text_len"],
        "target_codes_path": target["codes_path"],
        "target_code_len": target["code_len"],
        "target_emo_vec_path": target["emo_vec_path"],
    }


def write_manifest(path: Path, rows: list[Row]) -> Path:
    """Write rows as JSON lines."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def make_bpe(texts: list[str], size: int) -> bytes:
    """Train a bpe.model on texts, prepared as upstream prepares them."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([split_characters(text) for text in texts]),
        model_writer=model,
        model_type="bpe",
        vocab_size=size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        bos_id=0,
        eos_id=1,
        unk_id=2,
        minloglevel=2,
    )
    return model.getvalue()


def write_base(folder: Path, bpe_model: bytes) -> Path:
    """Write a random base as a published folder, with as many tokens as a bpe.model has."""
    rows = make_tokenizer(bpe_model).size + 1
    base = open_base(None, sizes=replace(TINY, num_text_tokens=rows))
    state = load_file(base.folder / GPT_FILE) | load_file(base.folder / CONDITIONING_FILE)
    write_published(folder, state, base.config, bpe_model=bpe_model, licence="Random numbers.")
    return folder


def read_yaml(path: Path) -> dict[str, Any]:
    """Return what a YAML file holds."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))
