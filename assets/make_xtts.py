"""Write a checkpoint folder of XTTS v2 with random weights, in the exact published layout.

    python -m assets.make_xtts FOLDER --size tiny|full [--with-config-pickle] [--seed 0]

The full size shows on any machine how long published weights take to load and how much memory they
need; what it says is noise. `--with-config-pickle` adds the configuration object that the original
release carries in its model.pth, without any of the package that defines it.
"""

import argparse
import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.models._conversion_cache import LICENCE_FILE, RANDOM_LICENCE
from trainer.models.xtts.checkpoint.export import write_published
from trainer.models.xtts.checkpoint.random_base import (
    blank_vocab,
    complete_sizes,
    config_of,
    random_states,
    random_voices,
)
from trainer.models.xtts.network.sizes import TINY, Sizes

FULL = Sizes()
CONFIG_CLASSES = {
    "config": "TTS.tts.configs.xtts_config.XttsConfig",
    "model_args": "TTS.tts.models.xtts.XttsArgs",
    "audio": "TTS.tts.models.xtts.XttsAudioConfig",
    "datasets": "TTS.config.shared_configs.BaseDatasetConfig",
}
"""Where the classes of the original release lived; later versions moved the middle two."""


def make_folder(
    folder: Path, sizes: Sizes, *, seed: int = 0, with_config_pickle: bool = False
) -> Sizes:
    """Write model.pth, dvae.pth, mel_stats.pth, speakers_xtts.pth, vocab.json and config.json."""
    vocab_json = blank_vocab(sizes.gpt.num_text_tokens)
    sizes = complete_sizes(sizes, vocab_json)
    states = random_states(sizes, seed)
    mel_stats = states["voice"].pop("mel_stats")
    state = {f"gpt.{name}": value for name, value in states["gpt"].items()}
    state |= {f"hifigan_decoder.{name}": value for name, value in states["voice"].items()}
    state["mel_stats"] = mel_stats
    config = config_of(sizes)
    folder.mkdir(parents=True, exist_ok=True)
    voices = random_voices(sizes, seed)
    with config_object(config) as pickled:
        beside = {"config": pickled} if with_config_pickle else {}
        write_published(folder, state, states["dvae"], voices, beside)
    (folder / "config.json").write_text(json.dumps(config, indent=4), encoding="utf-8")
    (folder / "vocab.json").write_text(vocab_json, encoding="utf-8")
    (folder / LICENCE_FILE).write_text(RANDOM_LICENCE + "\n", encoding="utf-8")
    return sizes


@contextmanager
def config_object(config: dict[str, Any]) -> Iterator[Any]:
    """Give a configuration as the object that the original release pickled.

    pickle looks a class up by its name before it writes it, so modules of these names stand in
    for as long as this lasts.
    """
    before = set(sys.modules)
    try:
        classes = {part: _declare(path) for part, path in CONFIG_CLASSES.items()}
        whole = _fill(classes["config"], config)
        whole.model_args = _fill(classes["model_args"], config["model_args"])
        whole.audio = _fill(classes["audio"], config["audio"])
        whole.datasets = [_fill(classes["datasets"], {"path": "", "language": "en"})]
        yield whole
    finally:
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "TTS":
                del sys.modules[name]


def _declare(path: str) -> type:
    module, _, name = path.rpartition(".")
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        parent = ".".join(parts[:length])
        sys.modules.setdefault(parent, types.ModuleType(parent))
    declared = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, declared)
    return declared


def _fill(kind: type, values: dict[str, Any]) -> Any:
    made = kind()
    vars(made).update(values)
    return made


def main() -> None:
    """Read the command line and write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=("tiny", "full"), default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--with-config-pickle", action="store_true")
    chosen = parser.parse_args()
    sizes = FULL if chosen.size == "full" else TINY
    make_folder(
        chosen.folder, sizes, seed=chosen.seed, with_config_pickle=chosen.with_config_pickle
    )
    for path in sorted(chosen.folder.iterdir()):
        print(f"{path.stat().st_size / 1e6:10.1f} MB  {path.name}")


if __name__ == "__main__":
    main()
