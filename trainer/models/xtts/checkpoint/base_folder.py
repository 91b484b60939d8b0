"""Open a base folder: published or trained XTTS v2 weights, which are converted once and cached.

A converted base is named after a hash of its files' contents. So it is never stale, any number of
processes can open it, and it can be deleted at any time.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from trainer.core.errors import CheckpointError
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
from trainer.models.xtts.checkpoint.random_base import (
    blank_vocab,
    complete_sizes,
    config_of,
    random_states,
)
from trainer.models.xtts.checkpoint.shapes import check_vocabulary, read_sizes, token_ids
from trainer.models.xtts.network.sizes import TINY, Sizes
from trainer.safe_unpickle import TENSOR, Conversion, Routes, convert_pickles, find_route

FORMAT = 1
GPT_FILE, VOICE_FILE, DVAE_FILE = "gpt.safetensors", "voice.safetensors", "dvae.safetensors"
SPEAKERS_FILE = "speakers.safetensors"
MEL_STATS = "mel_stats"

PUBLISHED_LICENCE = (
    "The published weights of XTTS v2 are under the Coqui Public Model License (CPML 1.0.0): "
    "they, models trained from them and the audio that these make are for non-commercial use "
    "only. Full text: https://coqui.ai/cpml"
)
"""Applies to every folder that has no LICENSE-WEIGHTS.txt."""

# In this order: safetensors cannot run code, and model.pth is the published name.
_MODELS = ("model.safetensors", "model.pth", "best_model.pth")
# coqui-tts's training recipes put the files of the model that they start from in this folder.
_ORIGINALS = "XTTS_v2.0_original_model_files"

State = dict[str, Tensor]


@dataclass(frozen=True)
class Base:
    """An opened base; two are equal if they have the same folder in the cache."""

    folder: Path
    source: Path = field(compare=False)
    sizes: Sizes = field(compare=False)
    config: Json = field(compare=False)
    vocab_json: str = field(compare=False)
    licence: str = field(compare=False)
    speakers: dict[str, list[str]] = field(compare=False)

    @property
    def has_dvae(self) -> bool:
        """Whether the base can be used for training, not only for synthesis."""
        return (self.folder / DVAE_FILE).is_file()

    @property
    def dvae_path(self) -> Path:
        """The path of the converted DVAE.

        Raises:
            CheckpointError: the base has no DVAE.
        """
        if not self.has_dvae:
            raise CheckpointError(
                f"There is no dvae.pth beside {self.source}, which training needs to turn audio "
                "into codes. Copy the dvae.pth that was published with XTTS v2 into "
                f"{self.source.parent}."
            )
        return self.folder / DVAE_FILE

    def gpt_state(self) -> State:
        """Return the GPT's weights, by their published names without `gpt.`."""
        return load_file(self.folder / GPT_FILE)

    def dvae_state(self) -> State:
        """Return all weights of the DVAE.

        Raises:
            CheckpointError: the base has no DVAE.
        """
        return load_file(self.dvae_path)

    def voice_state(self) -> State:
        """Return vocoder and speaker encoder, by published names without `hifigan_decoder.`."""
        state = load_file(self.folder / VOICE_FILE)
        # It lies in the same file, but strict loading would find it unexpected.
        del state[MEL_STATS]
        return state

    def mel_stats(self) -> Tensor:
        """Return the values (M,) that mels are divided by."""
        with safe_open(self.folder / VOICE_FILE, "pt") as file:
            # A copy, because the tensor may be mapped from the file.
            return file.get_tensor(MEL_STATS).float().clone()

    def mel_stats_hash(self) -> str:
        """Return a hash of the mel statistics, for fingerprints."""
        return hashlib.blake2b(self.mel_stats().numpy().tobytes(), digest_size=16).hexdigest()

    def voices(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return each voice's latents (1, 32, D) and embedding (1, S, 1)."""
        if not self.speakers:
            return {}
        state = load_file(self.folder / SPEAKERS_FILE)
        return {name: (state[one], state[two]) for name, (one, two) in self.speakers.items()}


@dataclass(frozen=True)
class _Files:
    """The files of a base; only model, config and vocab are required."""

    model: Path
    config: Path
    vocab: Path
    dvae: Path | None
    mel_stats: Path | None
    speakers: Path | None
    licence: Path | None


def open_base(
    base: Path | None, *, sizes: Sizes = TINY, seed: int = 0, vocab_json: str | None = None
) -> Base:
    """Open a folder or file of XTTS v2 weights; the first time, convert it.

    Without a base, open a random one of these sizes, which is the same for the same seed and
    vocabulary.

    Raises:
        CheckpointError: a file is missing or damaged, could run code or is of another model.
    """
    with conversions("xtts-bases", base) as parent:
        if base is None:
            return _open_random(parent, sizes, seed, vocab_json or blank_vocab())
        files = _find_files(Path(base))
        folder = parent / _identify(files, parent)
        made = convert_once(folder, _open, lambda partial: _convert(files, partial))
        # The cached base may come from a copy of these files; messages should name the given ones.
        return replace(made, source=files.model)


def _open_random(parent: Path, sizes: Sizes, seed: int, vocab_json: str) -> Base:
    sizes = complete_sizes(sizes, vocab_json)
    parts = json.dumps([FORMAT, sizes.to_json(), seed, vocab_json])

    def draw(partial: Path) -> None:
        for name, state in random_states(sizes, seed).items():
            save_tensors(partial / f"{name}.safetensors", state)
        about = {"sizes": sizes.to_json(), "config": config_of(sizes), "vocab": vocab_json}
        about |= {"licence": RANDOM_LICENCE, "source": "the random base", "speakers": {}}
        write_about(partial, about)

    return convert_once(parent / f"random-{hash_text(parts)}", _open, draw)


# Finding


def _find_files(base: Path) -> _Files:
    model = base if base.is_file() else _find_model(base)
    # A training checkpoint lies in a run folder, beside the folder of the original files.
    places = [model.parent, model.parent.parent / _ORIGINALS]

    def find(name: str) -> Path | None:
        return next((place / name for place in places if (place / name).is_file()), None)

    required = {"config": find("config.json"), "vocab": find("vocab.json")}
    for path, name, purpose in (
        (required["config"], "config.json", "has the model's settings"),
        (required["vocab"], "vocab.json", "is needed to turn text into tokens"),
    ):
        if path is None:
            raise CheckpointError(
                f"{model.parent} has no {name}, which {purpose}. Copy the {name} that belongs to "
                f"{model.name} into that folder."
            )
    assert required["config"] is not None and required["vocab"] is not None
    return _Files(
        model,
        required["config"],
        required["vocab"],
        find("dvae.pth"),
        find("mel_stats.pth"),
        find("speakers_xtts.pth"),
        find(LICENCE_FILE),
    )


def _find_model(folder: Path) -> Path:
    for name in _MODELS:
        if (folder / name).is_file():
            return folder / name
    # coqui-tts's checkpoints have the step in their name; the best one is preferred.
    for pattern in ("best_model_*.pth", "checkpoint_*.pth"):
        if found := sorted(folder.glob(pattern), key=_step_of):
            return found[-1]
    raise CheckpointError(
        f"{folder} contains no XTTS v2 weights. Choose a folder with model.pth or "
        "model.safetensors, config.json and vocab.json, or a training checkpoint such as "
        "best_model_1000.pth."
    )


def _step_of(path: Path) -> int:
    digits = re.search(r"_(\d+)\.pth$", path.name)
    return int(digits.group(1)) if digits else -1


def _identify(files: _Files, parent: Path) -> str:
    """Return the name in the cache: a hash of the contents of all files."""
    # Hashes are remembered by path, size and time, because model.pth has 1.9 GB.
    parts = [
        f"{name} {remembered_hash(path, parent / 'hashes')}"
        for name, path in vars(files).items()
        if path is not None
    ]
    # With FORMAT, a new layout converts again instead of opening old folders.
    return hash_text(f"{FORMAT} {files.model.suffix} {parts}")


# Converting


def _open(folder: Path) -> Base | None:
    """Return the converted base in a folder, or None if it is missing or incomplete."""
    about = read_about(folder)
    if about is None:
        return None
    return Base(
        folder=folder,
        source=Path(about["source"]),
        sizes=Sizes.from_json(about["sizes"]),
        config=about["config"],
        vocab_json=about["vocab"],
        licence=about["licence"],
        speakers=about["speakers"],
    )


def _convert(files: _Files, partial: Path) -> None:
    """Convert the files of a base into the folder `partial`, and check that they match."""
    config = _read_config(files.config)
    vocab_json = files.vocab.read_text(encoding="utf-8", errors="replace")
    ids = token_ids(vocab_json, files.vocab)
    speakers = _convert_tensors(files, partial)
    _require(partial / GPT_FILE, files.model, "a GPT (names that start with gpt.)")
    _require(
        partial / VOICE_FILE, files.model, "a vocoder (names that start with hifigan_decoder.)"
    )
    _add_mel_stats(files, partial)
    dvae = load_file(partial / DVAE_FILE) if (partial / DVAE_FILE).is_file() else {}
    voice = load_file(partial / VOICE_FILE)
    mel_stats = voice.pop(MEL_STATS)
    try:
        gpt = load_file(partial / GPT_FILE)
        sizes = read_sizes(gpt, voice, dvae, ids=ids, config=config)
    except CheckpointError as error:
        raise CheckpointError(f"{files.model} cannot be used. {error}") from None
    check_vocabulary(ids, sizes.gpt, files.vocab)
    if mel_stats.shape != (sizes.gpt.n_mels,):
        raise CheckpointError(
            f"The mel_stats of {files.model} have shape {tuple(mel_stats.shape)}; expected "
            f"({sizes.gpt.n_mels},). Download the file again."
        )
    about = {"sizes": sizes.to_json(), "config": config, "vocab": vocab_json}
    about |= {"source": str(files.model), "speakers": speakers}
    # Last, because it lists the sizes of the other files.
    write_about(partial, about | {"licence": read_licence(files.licence, PUBLISHED_LICENCE)})


def _convert_tensors(files: _Files, partial: Path) -> dict[str, list[str]]:
    """Write the tensors of all files; return the names of each speaker's two tensors."""
    jobs = []
    if files.model.suffix == ".safetensors":
        _split_safetensors(files.model, partial)
    else:
        jobs.append(Conversion(files.model, partial, _model_routes(files.dvae is None)))
    if files.dvae:
        jobs.append(Conversion(files.dvae, partial, {"": ("dvae", "")}))
    if files.mel_stats:
        jobs.append(Conversion(files.mel_stats, partial, {"": ("stats", MEL_STATS)}))
    if files.speakers:
        jobs.append(Conversion(files.speakers, partial, {"": ("speakers", "")}))
    # All in one child, because each takes seconds to start. The speakers stay the last job:
    # their values are taken from the end below.
    values = convert_pickles(jobs) if jobs else []
    return _name_speakers(files.speakers, values[-1]) if files.speakers else {}


def _model_routes(with_dvae: bool) -> Routes:
    """Map key prefixes of a model.pth or a training checkpoint to files; None drops the tensors."""
    routes: Routes = {}
    # A training checkpoint of coqui-tts adds `xtts.`; both kinds may lie under `model`.
    for start in ("model.xtts.", "model.", "xtts.", ""):
        routes[f"{start}gpt."] = ("gpt", "")
        # Models of the v1 era contain these weights a second time, under these names.
        routes[f"{start}gpt.gpt_inference."] = None
        routes[f"{start}gpt.gpt.wte."] = None
        routes[f"{start}hifigan_decoder."] = ("voice", "")
        routes[f"{start}{MEL_STATS}"] = ("voice", MEL_STATS)
    if with_dvae:
        routes["model.dvae."] = ("dvae", "")
    return routes


def _split_safetensors(path: Path, partial: Path) -> None:
    routes = _model_routes(False)
    files: dict[str, State] = {}
    try:
        for name, tensor in load_file(path).items():
            if found := find_route(name, routes):
                files.setdefault(found[0], {})[found[1]] = tensor
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}. Copy the file again, or remove it to use the "
            "model.pth beside it."
        ) from None
    for name, state in files.items():
        save_tensors(partial / f"{name}.safetensors", state)


def _name_speakers(path: Path, values: object) -> dict[str, list[str]]:
    try:
        if not isinstance(values, dict):
            raise TypeError("not a dict")
        return {
            name: [voice["gpt_cond_latent"][TENSOR], voice["speaker_embedding"][TENSOR]]
            for name, voice in values.items()
        }
    except (KeyError, TypeError):
        raise CheckpointError(
            f"{path} is not a file of XTTS voices; expected gpt_cond_latent and speaker_embedding "
            "for every name. Copy the published file again, or remove it; training does not need "
            "it."
        ) from None


def _add_mel_stats(files: _Files, partial: Path) -> None:
    """Add the mel statistics of mel_stats.pth to a model that has none."""
    separate = partial / "stats.safetensors"
    voice = load_file(partial / VOICE_FILE)
    if MEL_STATS not in voice:
        if not separate.is_file():
            raise CheckpointError(
                f"{files.model} has no mel_stats, and there is no mel_stats.pth beside it. Copy "
                "the mel_stats.pth that was published with XTTS v2 there."
            )
        # `voice` may be mapped from this file; safetensors replaces files, it never rewrites them.
        save_tensors(partial / VOICE_FILE, voice | load_file(separate))
    separate.unlink(missing_ok=True)


def _require(path: Path, source: Path, what: str) -> None:
    if not path.is_file():
        raise CheckpointError(
            f"{source} does not contain {what}. Choose the model.pth of an XTTS v2 folder, or a "
            "checkpoint that was trained from one."
        )


def _read_config(path: Path) -> Json:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a JSON object. Copy the published config.json again.")
    if config.get("model", "xtts") != "xtts":
        raise CheckpointError(
            f"{path} describes a model of type {config['model']!r}; expected xtts. "
            "Choose an XTTS v2 folder."
        )
    return config
