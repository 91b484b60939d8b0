"""Data that was made to do harm, or is merely monstrous: rows, names, files and exports."""

import csv
import io
import os
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.helpers.clips import write_list, write_tone
from tests.helpers.page import make_studio
from trainer import RunConfig
from trainer.commands.main import main
from trainer.core.errors import DataError
from trainer.core.events import StepDone
from trainer.core.run_config import DataConfig
from trainer.data.audio.audio_io import AudioError, load_audio
from trainer.data.audio.headers import AudioFacts
from trainer.data.audio.timeouts import read_with_timeout
from trainer.data.lists import manifest as manifest_module
from trainer.data.lists.dialect import is_header
from trainer.data.lists.json_lines import read_json_lines
from trainer.data.lists.listing import read_listing
from trainer.data.lists.manifest import Manifest, read_manifest
from trainer.data.lists.rows import split_rows
from trainer.runs.run import Run
from trainer.runs.run_store import free_name
from webui.routes import build_routes


def _read(path: Path) -> Manifest:
    return read_manifest(DataConfig(train_csv=str(path), eval_fraction=0.0))


def _kinds(manifest: Manifest) -> list[tuple[int, str]]:
    return [(problem.line, problem.kind) for problem in manifest.problems]


# Rows


@pytest.mark.fault("C7")
@pytest.mark.parametrize(
    ("length", "kinds"), [(200_000, []), (1_000_001, [(2, "broken_row")])], ids=["long", "absurd"]
)
@pytest.mark.parametrize("separator", ["|", ","])
def test_a_cell_beyond_the_limit_of_csv_readers_costs_its_own_row_at_most(
    tmp_path: Path, separator: str, length: int, kinds: list[tuple[int, str]]
) -> None:
    write_tone(tmp_path / "a.wav")
    write_tone(tmp_path / "b.wav")
    rows = ["audio_file|text", "a.wav|" + "x" * length, "b.wav|Hello."]

    manifest = _read(write_list(tmp_path / "t.csv", *(row.replace("|", separator) for row in rows)))

    assert _kinds(manifest) == kinds
    assert manifest.clips[-1].text == "Hello."


@pytest.mark.fault("C4")
@pytest.mark.parametrize(
    "row",
    [
        'a.wav|"' + '""' * 200_000 + "x",
        'audio_file,text\na.wav,"' + "x\n" * 20_000,
        'a.wav,"b\n' * 3000,
    ],
    ids=["doubled without end", "one never closed", "none closed"],
)
def test_quotes_made_to_take_time_take_none(row: str) -> None:
    started = time.process_time()

    rows = split_rows(row + "\nb.wav|ok\nc.wav,ok\n", is_header)

    assert rows is not None
    assert time.process_time() - started < 30  # A pattern took hours for the first.


@pytest.mark.fault("C6")
@pytest.mark.parametrize(
    "letter", ["\x00", "\x07", "\x1b", "\x7f", "\x9f", "\ufffd"], ids=lambda x: f"U+{ord(x):04X}"
)
@pytest.mark.parametrize("row", ["a.wav|He{}llo.|ann", "a{}.wav|Hello.|ann", "a.wav|Hello.|a{}n"])
def test_a_control_character_costs_its_own_row_wherever_it_stands(
    tmp_path: Path, row: str, letter: str
) -> None:
    write_tone(tmp_path / "a.wav")
    rows = ["audio_file|text|speaker_name", row.format(letter), "a.wav|Good day.|ann"]

    manifest = _read(write_list(tmp_path / "t.csv", *rows))

    assert _kinds(manifest) == [(2, "damaged_text")]
    assert not any(letter in str(problem) for problem in manifest.problems if letter != "\ufffd")
    assert [clip.text for clip in manifest.clips] == ["Good day."]


@pytest.mark.fault("C6")
def test_lone_surrogates_of_json_cost_their_own_row(tmp_path: Path) -> None:
    write_tone(tmp_path / "a.wav")
    rows = [
        '{"audio": "a.wav", "text": "\\ud800"}',
        '{"audio": "a.wav", "text": "one\u2028two\x85three"}',
        '{"audio": "a.wav", "text": "x", "codes_len": ' + "9" * 5000 + "}",
        "[" * 100_000,
    ]

    listing = read_json_lines(write_list(tmp_path / "t.jsonl", *rows), "t", "", "en")

    assert [entry.text for entry in listing.entries] == ["one two three"]
    assert [(problem.line, problem.kind) for problem in listing.problems] == [
        (1, "damaged_text"), (3, "broken_row"), (4, "broken_row"),
    ]  # fmt: skip


@pytest.mark.fault("C14")
@pytest.mark.parametrize(
    "cell",
    [
        "~/a.wav", "$HOME/a.wav", "${HOME}/a.wav", "%USERPROFILE%\\a.wav", "`id`.wav", "$(id).wav",
        "file:///etc/passwd", "ftp://evil.example/a.wav", "\\\\evil\\share\\a.wav",
        "//evil/share/a.wav", "../../../etc/passwd", "wavs/../../a.wav", "..\\..\\a.wav",
        "\\\\?\\C:\\a.wav", "/dev/zero", "/proc/self/environ", ".", "..", "/", "x" * 5000 + ".wav",
        "-rf.wav", "a.wav/../../../etc/passwd",
    ],
)  # fmt: skip
def test_a_path_that_is_more_than_a_path_leads_to_no_file(tmp_path: Path, cell: str) -> None:
    folder = tmp_path / "deep" / "data"
    folder.mkdir(parents=True)
    write_tone(tmp_path / "a.wav")

    manifest = _read(write_list(folder / "t.csv", "audio_file|text", f"{cell}|Hello."))

    assert manifest.clips == ()
    assert manifest.problems[0].kind in ("missing_audio", "refused_path", "empty_audio")


@pytest.mark.fault("C16")
def test_a_long_list_takes_memory_for_its_rows_once(tmp_path: Path) -> None:
    write_tone(tmp_path / "a.wav")
    num_rows = 10_000
    rows = (f"a.wav|This is sentence number {i} of many.|ann\n" for i in range(num_rows))
    path = tmp_path / "t.csv"
    path.write_text("audio_file|text|speaker_name\n" + "".join(rows))

    tracemalloc.start()
    listing = read_listing(path, "t.csv", "", "en")
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # A million rows take 0.5 GB when they are read; the text and its rows are not kept beside.
    assert len(listing.entries) == num_rows
    assert kept / num_rows < 700
    assert peak / num_rows < 1100


@pytest.mark.fault("C16")
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_while_a_long_list_is_read_it_is_told_how_far(tmp_path: Path, ending: str) -> None:
    write_tone(tmp_path / "a.wav")
    row = "a.wav|Hello there.\n" if ending == "csv" else '{"audio": "a.wav", "text": "Hello."}\n'
    path = tmp_path / f"t.{ending}"
    told: list[tuple[str, int, int]] = []

    for count in (200, 12_345):
        path.write_text(row * count)
        read_manifest(
            DataConfig(train_csv=str(path), eval_fraction=0.0),
            progress=lambda *words: told.append(words),
        )

    rows = [(done, total) for phase, done, total in told if phase == "Reading the list"]
    assert 100 <= len(rows) <= 102
    assert rows[0][0] < 200 and rows[-1] == (12_345, 12_345)
    assert [done for done, _ in rows] == sorted(done for done, _ in rows)
    # A run tells of what is a hundredth of all; whatever else comes is not shown.
    assert all(done % (total // 100) == 0 or done == total for done, total in rows)


@pytest.mark.fault("C16")
def test_rows_without_files_do_not_search_for_near_names_for_ever(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"recording_{number:04d}_of_somebody.wav").touch()
    rows = [f"recording_x{number:05d}_of_somebody.wav|Hello." for number in range(1000)]
    started = time.process_time()

    manifest = _read(write_list(tmp_path / "t.csv", *rows))

    assert len(manifest.problems) == 1000
    assert time.process_time() - started < 20  # 0.03 s for each would be a minute.


@pytest.mark.parametrize("name", ["pipe", "zero", "folder", "large"])
def test_a_list_that_is_no_ordinary_file_is_a_sentence(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(3 * 2**30)

    with pytest.raises(DataError, match="pipe or a device|Is a directory|3.0 GB; the limit"):
        read_listing(tmp_path / name, name, "", "en")


# Exports


@pytest.mark.fault("C17")
@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r="])
def test_no_export_begins_a_cell_as_a_formula_does(tmp_path: Path, start: str, capsys: Any) -> None:
    name = start + "cmd('/C calc')"
    studio = make_studio(tmp_path)
    run = Run.create(studio.library.folder / "voice", RunConfig())
    run.events.append(StepDone(1, {name: 1.0}))
    client = TestClient(Starlette(routes=build_routes(studio)))
    write_tone(tmp_path / "a.wav")
    rows = ["audio_file|text|speaker_name", f"a.wav|Hello|{name.strip()}", f"{name.strip()}|Hi|x"]
    _read(write_list(tmp_path / "t.csv", *rows)).write_csv(tmp_path / "ledger.csv")

    main(["metrics", str(run.folder), "--csv"])
    exports = [
        client.get("/studio/runs/voice/metrics.csv").text,
        capsys.readouterr().out,
        (tmp_path / "ledger.csv").read_text(encoding="utf-8-sig"),
    ]

    for export in exports:
        cells = [cell for row in csv.reader(io.StringIO(export)) for cell in row]
        assert any("cmd(" in cell for cell in cells)
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)
        assert "\n=" not in export.replace("\r", "\n")


# Audio


@pytest.mark.fault("D8")
@pytest.mark.parametrize("name", ["a.m4a", "a.wma", "a.mp4", "a.aac", "a.amr"])
def test_a_container_that_is_not_read_names_the_command_that_helps(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"\x00\x00\x00\x18ftypM4A " + bytes(100))

    manifest = _read(write_list(tmp_path / "t.csv", "audio_file|text", f"{name}|Hello."))

    assert _kinds(manifest) == [(2, "unreadable_audio")]
    assert "ffmpeg -i FILE out.wav" in manifest.problems[0].remedy


@pytest.mark.fault("D3")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_one_sample_that_is_no_sound_is_found_in_the_midst(tmp_path: Path, value: float) -> None:
    wave = np.full(16_000, 0.1, dtype=np.float32) * np.sign(np.sin(np.arange(16_000)))
    wave[9_999] = value
    soundfile.write(tmp_path / "a.wav", wave, 16_000, subtype="FLOAT")

    with pytest.raises(AudioError) as caught:
        load_audio(tmp_path / "a.wav", 16_000)

    assert caught.value.kind == "not_finite"


@pytest.mark.fault("D11")
def test_a_file_that_never_answers_is_given_up_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()

    def facts(path: str) -> AudioFacts:
        if path.endswith("stuck.wav"):
            hanging.wait()
        return AudioFacts(1.0, 16_000, 1)

    monkeypatch.setattr(manifest_module, "audio_facts", facts)
    monkeypatch.setattr(manifest_module, "_TIMEOUT_S", 0.05)
    names = [f"{number}.wav" for number in range(200)] + ["stuck.wav"]
    for name in names:
        (tmp_path / name).touch()

    manifest = _read(write_list(tmp_path / "t.csv", *(f"{name}|Hello {name}" for name in names)))
    hanging.set()

    assert len(manifest.clips) == 200
    assert _kinds(manifest) == [(201, "unreadable_audio")]
    assert "could not be read within" in manifest.problems[0].reason


def test_a_reader_that_breaks_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    with pytest.raises(RuntimeError, match="3 files were not read"):
        list(read_with_timeout(lambda item: 1 // 0, [1, 2, 3], workers=1, timeout_s=0.05))


# Runs of a stranger


@pytest.mark.fault("B10")
def test_links_in_a_run_that_lead_out_are_not_served(tmp_path: Path) -> None:
    studio = make_studio(tmp_path)
    run = Run.create(studio.library.folder / "voice", RunConfig())
    secret = tmp_path / "secret.wav"
    secret.write_bytes(b"secret")
    (run.folder / "previews" / "a.wav").symlink_to(secret)
    client = TestClient(Starlette(routes=build_routes(studio)))

    assert client.get("/studio/runs/voice/previews").json() == {"files": []}
    assert client.get("/studio/runs/voice/previews/a.wav").status_code == 404


@pytest.mark.fault("B12", "B14", "F14")
@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("$(touch pwned)", "touch-pwned"),
        ("`touch pwned`", "touch-pwned"),
        ("; rm -rf / #", "rm--rf"),
        ("-rf", "rf"),
        ("../../etc", "etc"),
        ("a\nb\tc", "a-b-c"),
        ("con", "run-con"),
        ("LPT1.old", "run-LPT1.old"),
        ("trailing. .", "trailing"),
        ("\U0001f600", "run"),
        ("\u1112\u1161\u11ab", "\ud55c"),
        ("x" * 400, "x" * 60),
        ("", "run"),
    ],
)
def test_a_name_of_a_run_is_only_a_name(tmp_path: Path, wanted: str, name: str) -> None:
    found = free_name(tmp_path, wanted)
    run = Run.create(tmp_path / found, RunConfig())

    assert found == name
    assert run.command()[-1] == str(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
