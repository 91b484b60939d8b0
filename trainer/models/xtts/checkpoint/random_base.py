"""Random weights for all networks of XTTS v2 in the published layout, with vocabulary and config.

They make the whole workflow usable, and testable, without the published weights.
"""

import json
from dataclasses import replace
from itertools import islice, product
from string import ascii_lowercase, digits

import torch
from torch import Tensor

from trainer.models._json import Json
from trainer.models.xtts.network.dvae import random_dvae_state
from trainer.models.xtts.network.gpt import XttsGpt
from trainer.models.xtts.network.sizes import OUTPUT_RATE, SAMPLE_RATE, Sizes
from trainer.models.xtts.network.speaker_encoder import random_speaker_state
from trainer.models.xtts.network.vocoder import random_vocoder_state

State = dict[str, Tensor]

LANGUAGES = (
    "en", "es", "fr", "de", "it", "pt", "pl", "tr", "ru", "nl", "cs", "ar", "zh-cn", "hu", "ko",
    "ja", "hi",
)  # fmt: skip
"""The languages of the published model, in its order."""

_NUM_LETTERS = 256  # with the special tokens before them, [en] then gets its published id, 259


def blank_vocab(size: int = 0) -> str:
    """Return a vocab.json in the published format with letters of many scripts.

    Letters, language tokens and [START] have the published positions. Pairs and triples of Latin
    letters fill the vocabulary up to `size` tokens.
    """
    letters = [chr(code) for code in _letter_codes()][:_NUM_LETTERS]
    tokens = ["[STOP]", "[UNK]", "[SPACE]", *letters, "[en]", "[de]", "[START]"]
    tokens += [f"[{name}]" for name in LANGUAGES if name not in ("en", "de")]
    special = [index for index, token in enumerate(tokens) if len(token) > 1]
    pairs = list(product(ascii_lowercase, ascii_lowercase))
    triples = ((first + second, third) for (first, second) in pairs for third in ascii_lowercase)
    count = max(0, size - len(tokens))
    merges = [*pairs[:count], *islice(triples, max(0, count - len(pairs)))]
    vocab = {token: index for index, token in enumerate([*tokens, *("".join(m) for m in merges)])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": index, "content": tokens[index], "special": True, **flags} for index in special]
    model = {
        "type": "BPE", "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False,
        "vocab": vocab, "merges": [" ".join(merge) for merge in merges],
    }  # fmt: skip
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None, "model": model,
    }  # fmt: skip
    return json.dumps(whole, ensure_ascii=False)


def _letter_codes() -> list[int]:
    """Return the code points of Latin, Cyrillic, Arabic, Devanagari and Ethiopic letters."""
    ranges = [(0xDF, 0x100), (0x101, 0x17F), (0x430, 0x450), (0x621, 0x64B), (0x905, 0x94E)]
    wide = [code for start, end in ranges for code in range(start, end)]
    lower = [code for code in wide if chr(code).isalpha() and chr(code).lower() == chr(code)]
    plain = [ord(letter) for letter in f"{ascii_lowercase}{digits}.,!?'\"-:;()"]
    return plain + lower + list(range(0x1200, 0x1300))


def complete_sizes(sizes: Sizes, vocab_json: str) -> Sizes:
    """Return the sizes with the number of text tokens of the vocabulary."""
    vocab = json.loads(vocab_json)
    ids = dict(vocab["model"]["vocab"])
    ids |= {token["content"]: token["id"] for token in vocab["added_tokens"]}
    gpt = replace(
        sizes.gpt,
        num_text_tokens=max(ids.values()) + 1,
        start_text=ids["[START]"],
        stop_text=ids["[STOP]"],
    )
    return replace(sizes, gpt=gpt)


def random_states(sizes: Sizes, seed: int) -> dict[str, State]:
    """Draw the weights `gpt`, `voice` (with mel_stats) and `dvae`, reproducibly from a seed."""
    generator = torch.Generator().manual_seed(seed)
    # Modules draw initial weights from the global generator; fork_rng restores its state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gpt = {name: value.detach() for name, value in XttsGpt(sizes.gpt).state_dict().items()}
        voice = random_vocoder_state(sizes.vocoder, generator)
        voice |= random_speaker_state(sizes.speaker, generator)
        dvae = random_dvae_state(sizes.dvae, generator)
    # About the logarithm of a loud band, and rising with frequency like the published ones.
    voice["mel_stats"] = torch.linspace(3.0, 5.0, sizes.gpt.n_mels)
    return {"gpt": gpt, "voice": voice, "dvae": dvae}


def random_voices(sizes: Sizes, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Draw two voices: latents (1, 32, D) and an embedding (1, S, 1) of unit length."""
    generator = torch.Generator().manual_seed(seed)
    voices = {}
    for name in ("Random One", "Random Two"):
        latents = torch.randn(1, sizes.gpt.num_latents, sizes.gpt.width, generator=generator)
        embedding = torch.randn(1, sizes.speaker.embedding, 1, generator=generator)
        voices[name] = (latents, embedding / embedding.norm())
    return voices


def config_of(sizes: Sizes) -> Json:
    """Return the config.json for these sizes, with the published defaults for inference."""
    gpt = sizes.gpt
    arguments = {
        "gpt_batch_size": 1, "enable_redaction": False, "kv_cache": True, "num_chars": 255,
        "gpt_checkpoint": None, "clvp_checkpoint": None, "decoder_checkpoint": None,
        "tokenizer_file": "", "gpt_max_audio_tokens": gpt.max_audio_tokens,
        "gpt_max_text_tokens": gpt.max_text_tokens, "gpt_max_prompt_tokens": 70,
        "gpt_layers": gpt.layers, "gpt_n_model_channels": gpt.width, "gpt_n_heads": gpt.heads,
        "gpt_number_text_tokens": gpt.num_text_tokens, "gpt_start_text_token": None,
        "gpt_stop_text_token": None, "gpt_num_audio_tokens": gpt.num_audio_tokens,
        "gpt_start_audio_token": gpt.start_audio, "gpt_stop_audio_token": gpt.stop_audio,
        "gpt_code_stride_len": 1024, "gpt_use_masking_gt_prompt_approach": True,
        "gpt_use_perceiver_resampler": True, "input_sample_rate": SAMPLE_RATE,
        "output_sample_rate": OUTPUT_RATE, "output_hop_length": 256,
        "decoder_input_dim": sizes.vocoder.latent_width,
        "d_vector_dim": sizes.vocoder.speaker_width,
        "cond_d_vector_in_each_upsampling_layer": True, "duration_const": 102400,
    }  # fmt: skip
    rates = {"sample_rate": SAMPLE_RATE, "output_sample_rate": OUTPUT_RATE}
    return {
        "model": "xtts", "model_args": arguments, "languages": list(LANGUAGES),
        "audio": rates | {"dvae_sample_rate": SAMPLE_RATE},
        "temperature": 0.75, "length_penalty": 1.0, "repetition_penalty": 5.0, "top_k": 50,
        "top_p": 0.85, "num_gpt_outputs": 1, "gpt_cond_len": 30, "gpt_cond_chunk_len": 4,
        "max_ref_len": 30, "sound_norm_refs": False,
    }  # fmt: skip
