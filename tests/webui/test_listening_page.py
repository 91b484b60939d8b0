"""Takes of one sentence by several checkpoints, and blind votes on them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.helpers.clips import write_tone
from tests.helpers.page import make_studio
from trainer import Run, RunConfig
from trainer.commands.main import main
from trainer.core.device import Device, DeviceUse
from trainer.core.errors import CheckpointError, ConfigError, DataError, RunError
from trainer.core.run_config import DataConfig
from trainer.core.specs import Speech
from trainer.inference.synthesis import (
    choose_inference_device,
    open_export,
    open_voice,
    speak,
    speak_takes,
)
from webui.jobs import listening_test, synthesis
from webui.jobs.listening_test import make_takes, read_clips, read_takes, standings, take_path, vote
from webui.routes import build_routes

BASE = Path(__file__).parent.parent.parent / "assets" / "base"
TEXTS = ["Hello there.", "Good day."]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with two checkpoints that a fake child speaks with, and two recorded sentences."""
    run = Run.create(tmp_path / "runs" / "voice", RunConfig(base=str(BASE)))
    for step, best in ((20, True), (30, False)):
        folder = run.folder / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        manifest = json.dumps({"step": step, "best": best})
        (folder / "manifest.json").write_text(manifest, encoding="utf-8")
    clips = [
        {"id": str(i), "text": text, "speaker": "ada", "split": "val",
         "audio_path": str(write_tone(tmp_path / f"{i}.wav"))}
        for i, text in enumerate(TEXTS)
    ]  # fmt: skip
    (run.folder / "clips.json").write_text(json.dumps({"clips": clips}), encoding="utf-8")
    return run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[str]]]:
    """What the child was asked to speak; it writes tones."""
    asked = []

    def speak(
        run: Run, texts: Sequence[str], checkpoints: Sequence[str], *, speaker: str, folder: Path
    ) -> dict[tuple[str, int], Path]:
        asked.append((list(texts), list(checkpoints)))
        pairs = [(which, number) for which in checkpoints for number in range(len(texts))]
        return {pair: write_tone(folder / f"{pair[0]}-{pair[1]}.wav", 0.2) for pair in pairs}

    monkeypatch.setattr(synthesis, "speak_takes", speak)
    return asked


def test_every_entry_speaks_every_sentence_once(run: Run, asked: list) -> None:
    entries = ["base", "20", "recording"]

    first = make_takes(run, TEXTS, entries, "ada", read_clips(run))
    second = make_takes(run, [*TEXTS, " Hello  there."], [*entries, "30"], "ada", read_clips(run))

    assert (first, second) == (6, 2)
    assert asked == [(TEXTS, ["base", "20"]), (TEXTS, ["30"])]
    takes = read_takes(run)
    assert {(take.entry, take.text) for take in takes} == {
        (entry, text) for entry in [*entries, "30"] for text in TEXTS
    }
    assert all(take.entry not in take.id for take in takes if take.entry == "recording")
    recording = next(take for take in takes if take.entry == "recording")
    path = take_path(run, recording.id)
    assert path is not None
    assert len(soundfile.read(path)[0]) == 16_000


def test_votes_by_number_become_a_ranking_by_name(run: Run, asked: list) -> None:
    make_takes(run, TEXTS[:1], ["base", "20"], "ada", read_clips(run))
    base, tuned = read_takes(run)

    vote(run, base.id, tuned.id, "second")
    vote(run, tuned.id, base.id, "first")

    found = standings(run)
    assert found["votes"] == 2
    assert [place["name"] for place in found["standings"]] == ["20", "base"]
    assert found["standings"][0]["wins"] == 2


def test_answers_on_nothing_are_refused(run: Run, asked: list) -> None:
    make_takes(run, TEXTS, ["base", "20"], "ada", read_clips(run))
    takes = {(take.entry, take.text): take.id for take in read_takes(run)}
    base, tuned = takes["base", TEXTS[0]], takes["20", TEXTS[0]]

    for first, second, winner in [
        (base, tuned, "neither"), (base, "gone", "first"), (base, base, "first"),
        (base, takes["20", TEXTS[1]], "first"),
    ]:  # fmt: skip
        with pytest.raises(RunError):
            vote(run, first, second, winner)

    assert standings(run) == {"votes": 0, "standings": []}


@pytest.mark.parametrize(
    ("texts", "entries", "kind"),
    [
        ([" "], ["20"], DataError),
        (["a"] * 7 + list("bcdefgh"), ["20"], DataError),
        (["x" * 2000], ["20"], DataError),
        (["a"], ["7"], RunError),
        (["a"], ["../x"], RunError),
    ],
)
def test_what_cannot_be_spoken_is_refused(
    run: Run, asked: list, texts: list[str], entries: list[str], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        make_takes(run, texts, entries, "ada", [])

    assert asked == []


def test_the_page_reads_takes_and_hears_them(run: Run, asked: list, tmp_path: Path) -> None:
    make_takes(run, TEXTS[:1], ["20", "recording"], "ada", read_clips(run))
    routes = build_routes(make_studio(tmp_path))
    with TestClient(Starlette(routes=routes), base_url="http://localhost") as client:
        answer = client.get("/studio/runs/voice/takes").json()
        take = answer["takes"][0]["id"]
        heard = client.get(f"/studio/runs/voice/takes/{take}.wav")
        bad = [
            client.get(f"/studio/runs/voice/takes/{name}.wav").status_code
            for name in ("0" * 20, "..%2f..%2frun", "takes")
        ]

    assert answer["choices"]["steps"] == [20, 30]
    assert answer["choices"]["best"] == 20
    assert answer["choices"]["has_base"]
    assert [sentence["text"] for sentence in answer["choices"]["sentences"]] == TEXTS
    assert heard.content[:4] == b"RIFF"
    assert bad == [404] * 3


def test_the_base_is_heard_with_the_speakers_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "voice", RunConfig(data=DataConfig("x.csv"), base=str(BASE)))
    monkeypatch.setattr("trainer.inference.synthesis.find_checkpoint", lambda run, which: BASE)

    spoken = list(speak_takes(run, ["Hi.", "No."], ["last", "base"]))
    takes = {(which, number): speech.wave for which, number, speech in spoken}

    assert list(takes) == [("last", 0), ("last", 1), ("base", 0), ("base", 1)]
    assert np.array_equal(takes["last", 1], takes["base", 1])
    words = ["synthesize", str(run.folder), "--text=Hi.", "--checkpoint=last,base"]
    assert main([*words, f"--out={tmp_path / 'takes'}"]) == 0
    assert sorted(path.name for path in (tmp_path / "takes").iterdir()) == [
        "base-0.wav",
        "last-0.wav",
    ]


def test_a_run_from_fresh_weights_has_no_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    monkeypatch.setattr("trainer.inference.synthesis.find_checkpoint", lambda run, which: BASE)

    with pytest.raises(CheckpointError, match="no base to hear"):
        open_voice(run, "base")

    assert not listening_test.choices(run, [])["has_base"]


@pytest.mark.parametrize(
    ("used_gib", "seen", "place"),
    [([23.0, 2.0], 2, "cuda:1"), ([23.0, 22.0], 2, "cpu"), ([2.0, 2.0], 1, "cpu"), ([], 0, "cpu")],
)
def test_speech_takes_a_gpu_only_where_it_disturbs_nobody(
    used_gib: list[float], seen: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [Device("cuda", index, "GPU", 24.0, (9, 0)) for index in range(len(used_gib))]
    cpu = Device("cpu", 0, "CPU", 16.0)
    monkeypatch.setattr("trainer.inference.synthesis.list_devices", lambda: [*gpus, cpu])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.setattr(
        "trainer.inference.synthesis.read_use_or_none",
        lambda gpu: DeviceUse(used_gib[gpu.index], 24.0),
    )

    assert choose_inference_device("auto", 2.0) == place


def test_a_gpu_that_fills_up_while_one_listens_leaves_it_to_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "voice", RunConfig(base=str(BASE)))
    monkeypatch.setattr("trainer.inference.synthesis.find_checkpoint", lambda run, which: BASE)
    family, model, facts = open_export(BASE, run.config)
    fails = iter([torch.OutOfMemoryError("made up")])

    def synthesize(*given: Any) -> Speech:
        for error in fails:
            raise error
        return family.synthesize(*given)

    full = replace(family, synthesize=synthesize)
    monkeypatch.setattr(
        "trainer.inference.synthesis.open_voice", lambda run, which: (full, model, facts, BASE)
    )

    assert len(speak(run, "Hi.").wave) > 0
    with pytest.raises(ConfigError, match="no device 'cuda:7'"):
        speak(run, "Hi.", device="cuda:7")
