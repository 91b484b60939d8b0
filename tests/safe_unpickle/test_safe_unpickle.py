"""Foreign pickles give up their tensors and plain values, and never get to run anything."""

import argparse
import collections
import json
import os
import pickle
import sys
import types
import zipfile
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from trainer.core.errors import CheckpointError
from trainer.safe_unpickle import (
    ALL,
    TENSOR,
    Conversion,
    Routes,
    child,
    convert_pickles,
)


class Trap:
    """Unpickled in full, it leaves a file behind."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.canary,))


class SystemTrap(Trap):
    """As a trap, through the shell."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.canary}",))


def _pickle(path: Path, content: Any) -> None:
    path.write_bytes(pickle.dumps(content, 2))


def _convert(source: Path, target: Path, routes: Routes = ALL) -> Any:
    """Convert as the child does, without the seconds that a process takes to start."""
    target.mkdir()
    return json.loads(json.dumps(child.convert(source, target, routes)))["values"]


def _refusal(source: Path, target: Path) -> str:
    with pytest.raises(child.Refused) as caught:
        _convert(source, target)
    return str(caught.value)


def _sentence(source: Path, target: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        convert_pickles([Conversion(source, target, ALL)])
    return str(caught.value)


def test_tensors_and_plain_values_come_out(tmp_path: Path) -> None:
    content = {
        "model": {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7)},
        "half": torch.ones(3, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "step": 12,
        "more": [None, True, 0.5, "text", (1, torch.tensor([True]))],
    }
    torch.save(content, tmp_path / "m.pth")

    values = _convert(tmp_path / "m.pth", tmp_path / "out")

    tensors = load_file(tmp_path / "out" / "tensors.safetensors")
    assert sorted(tensors) == ["empty", "half", "model.a.weight", "model.b", "more.4.1"]
    assert torch.equal(tensors["model.a.weight"], content["model"]["a.weight"])
    assert torch.equal(tensors["half"], content["half"])
    assert tensors["empty"].shape == (0, 4)
    assert tensors["model.b"].shape == ()
    assert values["step"] == 12
    assert values["more"] == [None, True, 0.5, "text", [1, {TENSOR: "more.4.1"}]]


def test_tensors_go_where_their_route_leads_and_others_are_left_out(tmp_path: Path) -> None:
    content = {"model": {"gpt.w": torch.ones(1), "gpt.old.w": torch.ones(2), "x": torch.ones(3)}}
    torch.save(content, tmp_path / "m.pth")
    routes = {"model.gpt.": ("gpt", ""), "model.gpt.old.": None}

    values = _convert(tmp_path / "m.pth", tmp_path / "out", routes)

    assert list(load_file(tmp_path / "out" / "gpt.safetensors")) == ["w"]
    assert values["model"]["gpt.w"] == {TENSOR: "w"}
    assert values["model"]["gpt.old.w"] is values["model"]["x"] is None


def _config_class(monkeypatch: pytest.MonkeyPatch) -> type:
    """Pretend that coqui-tts is installed, so that its class can be pickled by name."""
    names = ["TTS", "TTS.tts", "TTS.tts.configs", "TTS.tts.configs.xtts_config"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    config = type("XttsConfig", (), {"__module__": names[-1]})
    monkeypatch.setattr(sys.modules[names[-1]], "XttsConfig", config, raising=False)
    return config


def test_objects_of_known_classes_are_read_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config_class(monkeypatch)()
    config.languages = ["en"]
    counts: collections.defaultdict[str, Any] = collections.defaultdict(dict)
    counts["a"] = torch.ones(2)
    known = {
        "config": config,
        "namespace": argparse.Namespace(lr=1e-5),
        "path": PosixPath("runs/one"),
        "scalar": np.float64(2.5),
        "flag": np.bool_(True),
        "array": np.arange(6, dtype=np.int64).reshape(2, 3),
        "column": np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)),
        "objects": np.array([None, "a"], dtype=object),
    }
    content = {"counts": counts, "ordered": collections.OrderedDict(b=1), **known}
    torch.save(content, tmp_path / "m.pth")

    values = _convert(tmp_path / "m.pth", tmp_path / "out")

    others = {"counts": {"a": {TENSOR: "counts.a"}}, "ordered": {"b": 1}}
    assert values == dict.fromkeys(known) | others
    tensors = load_file(tmp_path / "out" / "tensors.safetensors")
    assert torch.equal(tensors["counts.a"], torch.ones(2))


def test_tensors_that_share_memory_or_have_gaps_keep_their_values(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    content = {"whole": whole, "tied": whole, "row": whole[1], "column": whole[:, 2]}
    torch.save(content | {"wide": torch.ones(1).expand(5)}, tmp_path / "m.pth")

    _convert(tmp_path / "m.pth", tmp_path / "out")

    tensors = load_file(tmp_path / "out" / "tensors.safetensors")
    assert all(torch.equal(tensors[name], value) for name, value in content.items())
    assert torch.equal(tensors["wide"], torch.ones(5))


@pytest.mark.parametrize("trap", [Trap, SystemTrap])
@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.fault("F6")
def test_code_in_a_pickle_never_runs(tmp_path: Path, trap: type[Trap], is_zip: bool) -> None:
    source, canary = tmp_path / "model.pth", tmp_path / "canary"
    content = {"model": {"w": torch.ones(2)}, "config": {"deep": [trap(canary)]}}
    torch.save(content, source, _use_new_zipfile_serialization=is_zip)

    message = _refusal(source, tmp_path / "out")

    assert not canary.exists()
    assert "could run code" in message
    # The trap is a true one.
    torch.load(source, weights_only=False)
    assert canary.exists()


def test_an_unknown_class_is_named(tmp_path: Path) -> None:
    torch.save({"config": zipfile.ZipInfo("a")}, tmp_path / "model.pth")

    assert "zipfile.ZipInfo" in _refusal(tmp_path / "model.pth", tmp_path / "out")


def test_a_file_cut_off_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model.pth"
    torch.save({"w": torch.ones(1000)}, source)
    source.write_bytes(source.read_bytes()[:-600])

    assert "truncated" in _refusal(source, tmp_path / "out")


@pytest.mark.parametrize("content", [b"not a pickle", b"PK\x03\x04"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "model.pth"
    source.write_bytes(content)

    assert "damaged" in _refusal(source, tmp_path / "out")


def test_a_tensor_expanded_beyond_the_file_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model.pth"
    torch.save({"w": torch.ones(1).expand(2**40)}, source)

    assert "far more than the file holds" in _refusal(source, tmp_path / "out")


def _rewrite(source: Path, compression: int, old: bytes, new: bytes) -> None:
    """Write the archive again, with other bytes in its pickle."""
    with zipfile.ZipFile(source) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(source, "w", compression) as archive:
        for name, part in parts.items():
            archive.writestr(name, part.replace(old, new))


def test_a_packed_archive_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model.pth"
    torch.save({"w": torch.zeros(1000)}, source)
    _rewrite(source, zipfile.ZIP_DEFLATED, b"", b"")

    assert "compressed" in _refusal(source, tmp_path / "out")


def test_a_storage_that_claims_more_than_the_file_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model.pth"
    torch.save({"w": torch.zeros(1000)}, source)
    huge = (2**31 - 1).to_bytes(4, "little")
    # BININT2 1000 becomes BININT 2^31 - 1: the storage's and the tensor's length alike.
    _rewrite(source, zipfile.ZIP_STORED, b"M\xe8\x03", b"J" + huge)

    assert "damaged" in _refusal(source, tmp_path / "out")


def test_a_legacy_file_that_claims_a_huge_storage_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model.pth"
    torch.save({"w": torch.zeros(1000)}, source, _use_new_zipfile_serialization=False)
    claimed = source.read_bytes().replace(b"M\xe8\x03", b"J" + (2**31 - 1).to_bytes(4, "little"))
    source.write_bytes(claimed)

    assert "cannot be used" in _sentence(source, tmp_path / "out")


def test_containers_within_containers_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_MAX_NODES", 1000)
    source = tmp_path / "model.pth"
    bundle: list[Any] = [0]
    for _ in range(30):
        bundle = [bundle, bundle]
    torch.save({"bundle": bundle}, source)

    assert "nested" in _refusal(source, tmp_path / "out")


def test_a_converter_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "model.pth")

    with pytest.raises(CheckpointError, match="took more than"):
        convert_pickles([Conversion(tmp_path / "model.pth", tmp_path, ALL)], timeout_s=0.01)


@pytest.mark.fault("F6")
def test_a_child_converts_several_files_and_names_the_one_with_code(tmp_path: Path) -> None:
    good, bad, canary = tmp_path / "good.pth", tmp_path / "bad.pth", tmp_path / "canary"
    torch.save({"w": torch.ones(2), "step": 3}, good)
    _pickle(bad, SystemTrap(canary))

    with pytest.raises(CheckpointError) as caught:
        convert_pickles(
            [Conversion(good, tmp_path / "one", ALL), Conversion(bad, tmp_path / "two", ALL)]
        )

    message = str(caught.value)
    assert not canary.exists()
    assert str(bad) in message
    assert "system" in message
    assert "Nothing in it was run. Download it again" in message
    tensors = load_file(tmp_path / "one" / "tensors.safetensors")
    assert torch.equal(tensors["w"], torch.ones(2))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="gone.pth does not exist"):
        convert_pickles([Conversion(tmp_path / "gone.pth", tmp_path, ALL)])
