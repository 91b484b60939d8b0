"""Our way from audio to codes with the true w2v-bert-2.0 class, in an environment that has it.

    PYTHONPATH=. python _indextts2_hearing.py FOLDER

FOLDER holds what `_indextts2_side.py hear` wrote; the result is heard.safetensors beside it.
"""

import sys
from dataclasses import replace
from pathlib import Path

import indextts2_inputs as inputs
from safetensors.torch import save_file

from trainer.models.indextts2.checkpoint.base_folder import Base
from trainer.models.indextts2.network.codec import load_codec
from trainer.models.indextts2.network.sizes import Sizes
from trainer.models.indextts2.training.filterbank import filterbank
from trainer.models.indextts2.training.semantic import SemanticFeatures
from trainer.safe_unpickle import Conversion, convert_pickles


def main() -> None:
    """Turn both waves into features and codes."""
    folder = Path(sys.argv[1])
    convert_pickles([Conversion(folder / "wav2vec2bert_stats.pt", folder, {"": ("stats", "")})])
    sizes = replace(Sizes(), feature_width=inputs.HEARING["hidden_size"])
    base = Base(folder, folder, sizes, {}, b"", "", is_random=False)
    hear = SemanticFeatures(base, str(folder / "w2v-bert-2.0"))
    codec = load_codec(folder / "codec.safetensors")
    found = {}
    for wave in inputs.waves():
        features = hear(filterbank(wave))
        found[f"heard.features.{len(wave)}"] = features[0].clone()
        found[f"heard.codes.{len(wave)}"] = codec(features)[0]
    save_file(found, folder / "heard.safetensors")


if __name__ == "__main__":
    main()
