"""Open a base folder (gpt.pth, config.yaml, bpe.model), which is converted once and cached.

The GPT and its conditioning encoders are converted to separate files, so that training with
precomputed voices need not read the encoders.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer.core.errors import CheckpointError, MissingDependency
from trainer.models._conversion_cache import (
    LICENCE_FILE,
    RANDOM_LICENCE,
    conversions,
    convert_once,
    hash_text,
    read_about,
    read_licence,
    remembered_hash,
    write_about,
)
from trainer.models._json import Json
from trainer.models._weights import save_tensors
from trainer.models.indextts2.checkpoint.export import LICENCE
from trainer.models.indextts2.checkpoint.shapes import (
    check_state,
    is_conditioning,
    refuse_other_versions,
    sizes_of,
)
from trainer.models.indextts2.network.codec import CodecEncoder, CodecSizes
from trainer.models.indextts2.network.gpt import CONDITIONING, UnifiedVoice
from trainer.models.indextts2.network.sizes import TINY, ConformerSizes, Sizes
from trainer.models.indextts2.text.tokenizer import ByteTokenizer
from trainer.safe_unpickle import Conversion, Routes, convert_pickles

FORMAT = 1
GPT_FILE, CONDITIONING_FILE = "gpt.safetensors", "conditioning.safetensors"
STATS_FILE, CODEC_FILE = "stats.safetensors", "codec.safetensors"
BPE_FILE = "bpe.model"

State = dict[str, Tensor]


@dataclass(frozen=True)
class Base:
    """An opened base; two are equal if they have the same folder."""

    folder: Path
    source: Path = field(compare=False)
    sizes: Sizes = field(compare=False)
    config: Json = field(compare=False)
    bpe_model: bytes = field(compare=False)  # empty: the base reads bytes
    licence: str = field(compare=False)
    is_random: bool = field(compare=False)

    def gpt_state(self) -> State:
        """Return the weights of the GPT, without the conditioning."""
        return load_file(self.folder / GPT_FILE)

    def conditioning_state(self) -> State:
        """Return the weights of the conditioning, which encodes references."""
        return load_file(self.folder / CONDITIONING_FILE)

    def stats(self) -> tuple[Tensor, Tensor]:
        """Return the mean and standard deviation (F,) of the semantic features.

        Raises:
            CheckpointError: the base has no statistics.
        """
        if not (self.folder / STATS_FILE).is_file():
            raise CheckpointError(
                f"{self.source.parent} has no wav2vec2bert_stats.pt, which is needed to compute "
                "features of audio. Copy it there; it was published with the model."
            )
        state = load_file(self.folder / STATS_FILE)
        return state["mean"].float(), state["var"].float().sqrt()


def open_base(base: Path | None, *, sizes: Sizes = TINY, seed: int = 0) -> Base:
    """Open a folder or file of IndexTTS-2 weights; the first time, convert it.

    Without a base, open a random one of these sizes, which is the same for the same seed.

    Raises:
        CheckpointError: a file is missing or damaged, could run code or is of another model.
    """
    with conversions("indextts2-bases", base) as parent:
        if base is None:
            folder = parent / f"random-{hash_text(json.dumps([FORMAT, sizes.to_json(), seed]))}"
            return convert_once(folder, _open, lambda partial: write_random(partial, sizes, seed))
        gpt = _find_gpt(Path(base))
        files = [gpt, *(path for path in _beside(gpt) if path.is_file())]
        names = [f"{path.name} {remembered_hash(path, parent / 'hashes')}" for path in files]
        folder = parent / hash_text(f"{FORMAT} {names}")
        made = convert_once(folder, _open, lambda partial: _convert(gpt, partial))
        return replace(made, source=gpt)


def read_config(path: Path) -> Json:
    """Read a config.yaml.

    Raises:
        CheckpointError: it is missing, or has no section `gpt`.
    """
    try:
        import yaml
    except ImportError:
        raise MissingDependency("pyyaml", "Reading config.yaml") from None
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        config = None
    if not isinstance(config, dict) or not isinstance(config.get("gpt"), dict):
        raise CheckpointError(
            f"{path} is missing or is not a configuration of IndexTTS-2; expected YAML with a "
            "section gpt. Copy the config.yaml that was published with the model beside its "
            "weights."
        )
    return config


def _find_gpt(base: Path) -> Path:
    if base.is_file():
        return base
    # The published name, then those that community trainers write.
    for name in ("gpt.pth", "latest.pth", "best_model.pth"):
        if (base / name).is_file():
            return base / name
    steps = sorted(base.glob("model_step*.pth"), key=lambda path: path.stat().st_mtime)
    if steps:
        return steps[-1]
    # Files of other versions have other names, but their config.yaml tells the version.
    if (base / "config.yaml").is_file():
        refuse_other_versions(set(), read_config(base / "config.yaml"))
    raise CheckpointError(
        f"{base} contains no IndexTTS-2 weights. Choose a folder with gpt.pth, config.yaml and "
        "bpe.model, or a .pth file with the other two beside it."
    )


def _beside(gpt: Path) -> list[Path]:
    names = ("config.yaml", BPE_FILE, "wav2vec2bert_stats.pt", LICENCE_FILE)
    return [gpt.parent / name for name in names]


def _convert(gpt: Path, partial: Path) -> None:
    config_path, bpe_path, stats_path, licence_path = _beside(gpt)
    config = read_config(config_path)
    refuse_other_versions(set(), config)
    if not bpe_path.is_file():
        raise CheckpointError(
            f"{gpt.parent} has no bpe.model, which is needed to turn text into tokens. Copy the "
            f"bpe.model that belongs to {gpt.name} into that folder."
        )
    jobs = [Conversion(gpt, partial, _routes())]
    if stats_path.is_file():
        jobs.append(Conversion(stats_path, partial, {"": ("stats", "")}))
    convert_pickles(jobs)
    shapes: dict[str, tuple[int, ...]] = {}
    for name in (GPT_FILE, CONDITIONING_FILE):
        shapes |= _shapes(partial / name)
    try:
        refuse_other_versions(set(shapes), config)
        # Meta tensors: only their shapes are needed, so the weights are not read.
        blank = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        sizes = sizes_of(blank, config["gpt"])
        check_state(shapes, sizes)
    except CheckpointError as error:
        raise CheckpointError(f"{gpt} cannot be used. {error}") from None
    (partial / BPE_FILE).write_bytes(bpe_path.read_bytes())
    _write_about(partial, sizes, config, read_licence(licence_path, LICENCE), gpt)


def _routes() -> Routes:
    """Map key prefixes of a gpt.pth or a training checkpoint to files; None drops the tensors."""
    # The state of a training checkpoint is large and not needed.
    routes: Routes = dict.fromkeys(("optimizer.", "scheduler.", "scaler."))
    for start in ("model.", ""):
        routes[start] = ("gpt", "")
        # Some files contain these weights a second time, under these names.
        routes[f"{start}inference_model."] = None
        routes[f"{start}gpt.wte."] = None
        routes |= {f"{start}{name}.": ("conditioning", f"{name}.") for name in CONDITIONING}
    return routes


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    if not path.is_file():
        return {}
    with safe_open(path, "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def write_random(partial: Path, sizes: Sizes, seed: int) -> None:
    """Write a base with random weights, including a codec and feature statistics."""
    sizes = (
        sizes if sizes.num_text_tokens else replace(sizes, num_text_tokens=ByteTokenizer.size + 1)
    )
    # Modules draw initial weights from the global generator; fork_rng restores its state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = _state_of(UnifiedVoice(sizes, with_conditioning=True))
        # Small, but with as many codes as the GPT has.
        codec_sizes = CodecSizes(sizes.feature_width, 32, 64, 2, sizes.start_audio)
        codec = _state_of(CodecEncoder(codec_sizes))
    parts: dict[str, State] = {GPT_FILE: {}, CONDITIONING_FILE: {}, CODEC_FILE: codec}
    for name, value in state.items():
        parts[CONDITIONING_FILE if is_conditioning(name) else GPT_FILE][name] = value
    width = sizes.feature_width
    parts[STATS_FILE] = {"mean": torch.zeros(width), "var": torch.ones(width)}
    for name, tensors in parts.items():
        save_tensors(partial / name, tensors)
    _write_about(partial, sizes, {"gpt": config_of(sizes), "version": 2.0}, RANDOM_LICENCE, None)


def config_of(sizes: Sizes) -> Json:
    """Return the section `gpt` of a config.yaml for these sizes."""
    return {
        "model_dim": sizes.width, "max_mel_tokens": sizes.max_audio_tokens,
        "max_text_tokens": sizes.max_text_tokens, "heads": sizes.heads,
        "use_mel_codes_as_input": True, "mel_length_compression": 1024, "layers": sizes.layers,
        "number_text_tokens": sizes.num_text_tokens - 1,
        "number_mel_codes": sizes.num_audio_tokens, "start_mel_token": sizes.start_audio,
        "stop_mel_token": sizes.stop_audio, "start_text_token": sizes.start_text,
        "stop_text_token": sizes.stop_text, "train_solo_embeddings": False,
        "condition_type": "conformer_perceiver", "condition_num_latent": sizes.num_latents,
        "condition_module": _module(sizes.speaker, sizes),
        "emo_condition_module": _module(sizes.emotion, sizes),
    }  # fmt: skip


def _module(part: ConformerSizes, sizes: Sizes) -> Json:
    return {
        "output_size": part.width, "linear_units": part.inner, "attention_heads": part.heads,
        "num_blocks": part.blocks, "input_layer": "conv2d2", "perceiver_mult": sizes.perceiver_mult,
    }  # fmt: skip


def _state_of(module: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _write_about(
    folder: Path, sizes: Sizes, config: Json, licence: str, source: Path | None
) -> None:
    about = {"sizes": sizes.to_json(), "config": config, "licence": licence}
    about |= {"source": str(source or "the random base"), "is_random": source is None}
    write_about(folder, about)


def _open(folder: Path) -> Base | None:
    """Return the converted base in a folder, or None if it is missing or incomplete."""
    about, bpe = read_about(folder), folder / BPE_FILE
    if about is None:
        return None
    return Base(
        folder=folder,
        source=Path(about["source"]),
        sizes=Sizes.from_json(about["sizes"]),
        config=about["config"],
        bpe_model=bpe.read_bytes() if bpe.is_file() else b"",
        licence=about["licence"],
        is_random=about["is_random"],
    )
