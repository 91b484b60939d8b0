"""Writes what the original needs besides the GPT, small and random, as its first use leaves it.

    PYTHONPATH=UPSTREAM python _indextts2_layout.py FOLDER

Classes are the original's own, so that what speaks with them runs every line that real weights run.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from indextts.s2mel.modules.bigvgan.bigvgan import BigVGAN
from indextts.s2mel.modules.bigvgan.env import AttrDict
from indextts.s2mel.modules.campplus.DTDNN import CAMPPlus
from indextts.s2mel.modules.commons import MyModel
from indextts.utils.maskgct.models.codec.kmeans.repcodec_model import RepCodec
from omegaconf import OmegaConf
from safetensors.torch import save_model
from transformers import SeamlessM4TFeatureExtractor, Wav2Vec2BertConfig, Wav2Vec2BertModel

CODEC = {
    "codebook_size": 8192, "hidden_size": 1024, "codebook_dim": 8, "vocos_dim": 32,
    "vocos_intermediate_dim": 64, "vocos_num_layers": 2,
}  # fmt: skip
S2MEL: dict[str, Any] = {
    "preprocess_params": {
        "sr": 22050,
        "spect_params": {
            "n_fft": 1024, "win_length": 1024, "hop_length": 256, "n_mels": 80, "fmin": 0,
            "fmax": "None",
        },
    },
    "dit_type": "DiT",
    "reg_loss_type": "l1",
    "style_encoder": {"dim": 192},
    "length_regulator": {
        "channels": 64, "is_discrete": False, "in_channels": 1024, "content_codebook_size": 64,
        "sampling_ratios": [1, 1, 1, 1], "vector_quantize": False, "n_codebooks": 1,
        "quantizer_dropout": 0.0, "f0_condition": False, "n_f0_bins": 512,
    },
    "DiT": {
        "hidden_dim": 64, "num_heads": 2, "depth": 3, "class_dropout_prob": 0.1,
        "block_size": 8192, "in_channels": 80, "style_condition": True,
        "final_layer_type": "wavenet", "target": "mel", "content_dim": 64,
        "content_codebook_size": 64, "content_type": "discrete", "f0_condition": False,
        "n_f0_bins": 512, "content_codebooks": 1, "is_causal": False,
        "long_skip_connection": True, "zero_prompt_speech_token": False, "time_as_token": False,
        "style_as_token": False, "uvit_skip_connection": True,
        "add_resblock_in_transformer": False,
    },
    "wavenet": {
        "hidden_dim": 64, "num_layers": 2, "kernel_size": 5, "dilation_rate": 1, "p_dropout": 0.2,
        "style_condition": True,
    },
}  # fmt: skip
BIGVGAN = {
    "resblock": "1", "upsample_rates": [4, 4, 2, 2, 2, 2],
    "upsample_kernel_sizes": [8, 8, 4, 4, 4, 4], "upsample_initial_channel": 64,
    "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]],
    "use_tanh_at_final": False, "use_bias_at_final": False, "activation": "snakebeta",
    "snake_logscale": True, "num_mels": 80, "n_fft": 1024, "hop_size": 256, "win_size": 1024,
    "sampling_rate": 22050, "fmin": 0, "fmax": None,
}  # fmt: skip
VOCODER = "nvidia/bigvgan_v2_22khz_80band_256x"
EMOTIONS = [3, 17, 2, 8, 4, 5, 10, 24]


def main() -> None:
    """Write the folder."""
    folder = Path(sys.argv[1])
    folder.mkdir()
    torch.manual_seed(0)
    config = {
        "dataset": {"bpe_model": "bpe.model"}, "gpt": {"stop_mel_token": 8193},
        "semantic_codec": CODEC, "s2mel": S2MEL, "gpt_checkpoint": "gpt.pth",
        "w2v_stat": "wav2vec2bert_stats.pt", "s2mel_checkpoint": "s2mel.pth",
        "emo_matrix": "feat2.pt", "spk_matrix": "feat1.pt", "emo_num": EMOTIONS,
        "qwen_emo_path": "qwen0.6bemo4-merge/", "vocoder": {"type": "bigvgan", "name": VOCODER},
        "version": 2.0,
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    torch.save({"mean": torch.zeros(1024), "var": torch.ones(1024)}, folder / config["w2v_stat"])
    torch.save(torch.randn(sum(EMOTIONS), 192), folder / "feat1.pt")
    torch.save(torch.randn(sum(EMOTIONS), 1280), folder / "feat2.pt")
    network = MyModel(OmegaConf.create(S2MEL), use_gpt_latent=True)
    states = {name: part.state_dict() for name, part in network.models.items()}
    torch.save({"net": states}, folder / "s2mel.pth")
    _write_cache(folder / "hf_cache")


def _write_cache(cache: Path) -> None:
    hearing = Wav2Vec2BertModel(
        Wav2Vec2BertConfig(hidden_size=1024, num_hidden_layers=17, num_attention_heads=16,
                           intermediate_size=64, position_embeddings_type="relative_key")
    )  # fmt: skip
    place = _snapshot(cache, "facebook/w2v-bert-2.0")
    hearing.save_pretrained(place)
    SeamlessM4TFeatureExtractor().save_pretrained(place)
    place = _snapshot(cache, "amphion/MaskGCT") / "semantic_codec"
    place.mkdir()
    save_model(RepCodec(cfg=SimpleNamespace(**CODEC)), str(place / "model.safetensors"))
    speaker = CAMPPlus(feat_dim=80, embedding_size=192).state_dict()
    torch.save(speaker, _snapshot(cache, "funasr/campplus") / "campplus_cn_common.bin")
    place = _snapshot(cache, VOCODER)
    (place / "config.json").write_text(json.dumps(BIGVGAN), encoding="utf-8")
    vocoder = BigVGAN(AttrDict(BIGVGAN))
    torch.save({"generator": vocoder.state_dict()}, place / "bigvgan_generator.pt")


def _snapshot(cache: Path, name: str) -> Path:
    """Return the folder of a repository in a cache of the hub, as one that was fetched."""
    folder = cache / f"models--{name.replace('/', '--')}"
    commit = "0" * 40
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit, encoding="utf-8")
    place = folder / "snapshots" / commit
    place.mkdir(parents=True)
    return place


if __name__ == "__main__":
    main()
