"""Compare our FastSpeech 2 with ming024's implementation, which is not part of this repository.

Usage, with a checkout of https://github.com/ming024/FastSpeech2 (MIT):

    PYTHONPATH=. python tests/parity/compare_fastspeech2.py --original path/to/FastSpeech2

Needs torch, numpy, scipy and matplotlib; the original's text packages are not needed. Compares, and
exits with 1 if one differs by more than 1e-5: keys and shapes at the standard size; outputs, losses
and gradients of a tiny network (dropout off, clips of equal length, since the original lets padding
leak into shorter clips); free-running synthesis; loading a .pth.tar as the original writes it; the
symbol table; and the HiFi-GAN generator with its weight norm folded.
"""

import argparse
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch
from tiny_fastspeech2 import NUM_SPEAKERS, SIZES, fill_weights, tiny_batch, tiny_network

TOLERANCE = 1e-5


def main() -> int:
    """Run every comparison and print its largest difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--original", type=Path, required=True, help="folder of the original")
    original = parser.parse_args().original.resolve()
    sys.path.insert(1, str(original))
    _stub_text_packages()
    torch.use_deterministic_algorithms(True)
    with tempfile.TemporaryDirectory() as folder:
        checks = [
            *_compare_tiny(Path(folder)),
            ("keys and shapes, one speaker", _compare_keys(Path(folder), 1)),
            ("keys and shapes, three speakers", _compare_keys(Path(folder), 3)),
            ("loading a .pth.tar", _compare_loading(Path(folder))),
            ("symbol table (entries that differ)", _compare_symbols()),
            ("HiFi-GAN audio", _compare_hifigan(original)),
        ]
    failed = [name for name, difference in checks if not difference <= TOLERANCE]
    for name, difference in checks:
        print(f"{name:42} {difference:.2e}")
    print(f"{len(failed)} of {len(checks)} differ by more than {TOLERANCE}")
    return 1 if failed else 0


def _stub_text_packages() -> None:
    """Stand in for packages that only the original's English text cleaning uses."""
    unidecode: Any = types.ModuleType("unidecode")
    unidecode.unidecode = str
    inflect: Any = types.ModuleType("inflect")
    inflect.engine = object
    sys.modules.update(unidecode=unidecode, inflect=inflect)


def _build_original(folder: Path, sizes: Any, num_speakers: int) -> tuple[Any, Any]:
    """Return the original network of these sizes and its loss."""
    from model import FastSpeech2 as Original  # type: ignore[import-not-found]
    from model import FastSpeech2Loss  # type: ignore[import-not-found]

    speakers = {str(number): number for number in range(num_speakers)}
    (folder / "speakers.json").write_text(json.dumps(speakers))
    # The range of a fresh network of ours, so that the bins agree without copying.
    (folder / "stats.json").write_text(json.dumps({"pitch": [-3, 3], "energy": [-3, 3]}))
    level = {"feature": "phoneme_level"}
    preprocess = {
        "path": {"preprocessed_path": str(folder)},
        "preprocessing": {"mel": {"n_mel_channels": 80}, "pitch": level, "energy": level},
    }
    shape = {
        "encoder_layer": sizes.encoder_blocks,
        "decoder_layer": sizes.decoder_blocks,
        "encoder_head": sizes.num_heads,
        "decoder_head": sizes.num_heads,
        "encoder_hidden": sizes.width,
        "decoder_hidden": sizes.width,
        "conv_filter_size": sizes.ffn_width,
        "conv_kernel_size": [sizes.ffn_kernel, 1],
        "encoder_dropout": sizes.dropout,
        "decoder_dropout": sizes.dropout,
    }
    settings = {
        "transformer": shape,
        "variance_predictor": {
            "filter_size": sizes.predictor_width,
            "kernel_size": 3,
            "dropout": sizes.predictor_dropout,
        },
        "variance_embedding": {
            "pitch_quantization": "linear",
            "energy_quantization": "linear",
            "n_bins": sizes.num_bins,
        },
        "multi_speaker": num_speakers > 1,
        "max_seq_len": 1000,
    }
    return Original(preprocess, settings), FastSpeech2Loss(preprocess, settings)


def _compare_tiny(folder: Path) -> list[tuple[str, float]]:
    """Compare a forward pass, losses, gradients and free-running synthesis."""
    from trainer.models.fastspeech2.training.losses import losses

    theirs, criterion = _build_original(folder, SIZES, NUM_SPEAKERS)
    ours, batch = tiny_network(), tiny_batch()
    theirs.load_state_dict(ours.state_dict())
    theirs.eval()
    num_tokens = batch["token_mask"].sum(dim=1)
    num_frames = batch["mel_mask"].sum(dim=1)
    inputs = (batch["speaker"], batch["tokens"], num_tokens, int(num_tokens.max()))
    frames = (batch["mel"], num_frames, int(num_frames.max()))
    targets = (batch["pitch"], batch["energy"], batch["durations"])
    output = theirs(*inputs, *frames, *targets)
    total, *parts = criterion((None, None, *inputs, *frames, *targets), output)
    names = ("mel", "mel_postnet", "pitch", "energy", "duration")
    expected = dict(zip(names, parts, strict=True))
    for name, value in expected.items():
        print(f'    "{name}": {value.item():.9g},')
    found = losses(ours, batch)
    total.backward()
    sum(found.values(), torch.zeros(())).backward()
    wanted = dict(theirs.named_parameters())
    largest = max(
        float(value.grad.abs().max()) for value in wanted.values() if value.grad is not None
    )
    # A key's bias has no effect on attention, so its gradient is rounding alone.
    gradients = max(
        float((parameter.grad - wanted[name].grad).abs().max()) / largest
        for name, parameter in ours.named_parameters()
        if parameter.grad is not None
    )
    forced = {name: batch[name] for name in ("durations", "pitch", "energy", "mel_mask")}
    mine = ours(batch["tokens"], batch["token_mask"], batch["speaker"], forced)
    free = ours(batch["tokens"][:1], batch["token_mask"][:1], batch["speaker"][:1])
    their_free = theirs(inputs[0][:1], inputs[1][:1], inputs[2][:1], inputs[3])
    return [
        ("mel", _difference(mine.mel, output[0])),
        ("mel after the postnet", _difference(mine.mel_refined, output[1])),
        ("pitch", _difference(mine.pitch, output[2])),
        ("energy", _difference(mine.energy, output[3])),
        ("log duration", _difference(mine.log_duration, output[4])),
        *((f"loss {name}", _difference(found[name], expected[name])) for name in names),
        ("gradients", gradients),
        ("free-running mel", _difference(free.mel_refined, their_free[1])),
    ]


def _difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference relative to the largest value."""
    ours, theirs = ours.detach(), theirs.detach()
    if ours.shape != theirs.shape:
        return float("inf")
    return float((ours - theirs).abs().max() / max(1e-6, float(theirs.abs().max())))


def _compare_keys(folder: Path, num_speakers: int) -> float:
    """Return how many keys or shapes differ at the standard size."""
    from trainer.models.fastspeech2.network import FastSpeech2, sizes_of

    sizes = sizes_of("standard", "auto", None)
    theirs = _build_original(folder, sizes, num_speakers)[0].state_dict()
    ours = FastSpeech2(sizes, 361, num_speakers).state_dict()
    same = {name for name in ours if name in theirs and ours[name].shape == theirs[name].shape}
    return float(len((set(ours) | set(theirs)) - same))


def _compare_loading(folder: Path) -> float:
    """Load what the original saves through our `load` and compare every tensor."""
    from trainer.models.fastspeech2.checkpoint.weights import load, read_base
    from trainer.models.fastspeech2.network import sizes_of
    from trainer.models.fastspeech2.options import Options

    theirs, _ = _build_original(folder, sizes_of("standard", "auto", None), 3)
    path = folder / "900000.pth.tar"
    torch.save({"model": theirs.state_dict(), "optimizer": {"state": {}}}, path)
    facts, _ = read_base(path)
    ours = load(path, Options(size="standard"), facts).state_dict()
    return max(_difference(ours[name], value) for name, value in theirs.state_dict().items())


def _compare_symbols() -> float:
    from text.symbols import symbols  # type: ignore[import-not-found]

    from trainer.models.fastspeech2.checkpoint.published import published_symbols

    ours = published_symbols(len(symbols) + 1)
    # The first is padding on both sides, under different names.
    return float(sum(mine != other for mine, other in zip(ours[1:-1], symbols[1:], strict=True)))


def _compare_hifigan(original: Path) -> float:
    import hifigan  # type: ignore[import-not-found]

    from trainer.models._layers.hifigan import Hifigan, HifiganSettings, fold_weight_norm

    settings = json.loads((original / "hifigan" / "config.json").read_text())
    theirs = hifigan.Generator(hifigan.AttrDict(settings))
    fill_weights(theirs, size=0.05)
    ours = Hifigan(HifiganSettings())
    ours.load_state_dict(fold_weight_norm(theirs.state_dict()))
    mel = torch.sin(torch.arange(80 * 6).float()).view(1, 80, 6)
    with torch.no_grad():
        return _difference(ours(mel), theirs(mel).squeeze(1))


if __name__ == "__main__":
    sys.exit(main())
