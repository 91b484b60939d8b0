"""Archives from anywhere: only clips and lists come out, into a folder of their own, no bomb."""

import os
import stat
import struct
import zipfile
from pathlib import Path

import pytest

from tests.helpers.clips import write_tone
from tests.helpers.page import make_studio
from trainer.core.errors import DataError
from trainer.core.run_config import DataConfig
from trainer.data.lists import archives
from trainer.data.lists.archives import Limits, unpack
from trainer.data.lists.manifest import read_manifest
from webui.tabs.data import store_upload

ROW = "audio_file|text\nwavs/a.wav|one\n"


def _zip(path: Path, members: dict[str, bytes], *, packing: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.filename = name  # As it stands: ZipInfo would mend what is hostile.
            info.compress_type = packing
            archive.writestr(info, content)
    return path


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _refusal(archive: Path, limits: Limits | None = None) -> str:
    with pytest.raises(DataError) as caught:
        unpack(archive, archive.parent / "out", limits)
    assert not (archive.parent / "out").exists()
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    return str(caught.value)


def test_a_dataset_in_an_archive_is_ready_to_check(tmp_path: Path) -> None:
    sound = write_tone(tmp_path / "a.wav").read_bytes()
    members = {
        "voice/metadata.csv": ROW.encode(), "voice/wavs/a.wav": sound,
        "__MACOSX/voice/._a.wav": b"x", "voice/.DS_Store": b"x", "voice/notes.docx": b"x",
    }  # fmt: skip

    unpacked = unpack(_zip(tmp_path / "a.zip", members), tmp_path / "out")

    assert _files(tmp_path / "out") == ["voice/metadata.csv", "voice/wavs/a.wav"]
    assert unpacked.num_files == 2
    assert unpacked.refused == {"voice/notes.docx": "it is neither a clip nor a list"}
    manifest = read_manifest(DataConfig(train_data=str(tmp_path / "out" / "voice")))
    assert [clip.text for clip in manifest.clips] == ["one"]


@pytest.mark.fault("F5")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../out.wav", "leads out"),
        ("a/../../out.wav", "leads out"),
        ("..\\out.wav", "leads out"),
        ("/tmp/out.wav", "absolute"),
        ("\\\\server\\share\\out.wav", "absolute"),
        ("C:\\out.wav", "absolute"),
        ("c:out.wav", "absolute"),
        ("a\n.wav", "control characters"),
        ("a" * 300 + ".wav", "255 bytes"),
        ("d/" * 17 + "a.wav", "folders deep"),
        ("run.sh", "neither a clip nor a list"),
        ("inner.zip", "neither a clip nor a list"),
        ("ok.wav/a.wav", "conflicts with another"),
        ("OK.WAV", "differs only in case"),
        ("ok.wav", "already taken"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_name_stays_in_the_archive(tmp_path: Path, name: str, reason: str) -> None:
    archive = tmp_path / "deep" / "a.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("ok.wav", b"sound")
        info = zipfile.ZipInfo("x")
        info.filename = name
        opened.writestr(info, b"evil")

    unpacked = unpack(archive, archive.parent / "out")

    assert _files(tmp_path) == ["deep/a.zip", "deep/out/ok.wav"]
    assert (archive.parent / "out" / "ok.wav").read_bytes() == b"sound"
    assert [reason in said for said in unpacked.refused.values()] == [True]


@pytest.mark.fault("F5", "B10")
def test_a_link_stays_in_the_archive(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("a.wav")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as opened:
        opened.writestr(link, "/etc/passwd")
        opened.writestr("b.wav", b"sound")

    unpacked = unpack(tmp_path / "a.zip", tmp_path / "out")

    assert unpacked.refused == {"a.wav": "it is a link"}
    assert _files(tmp_path / "out") == ["b.wav"]


@pytest.mark.fault("F4")
def test_a_bomb_is_refused_by_its_ratio(tmp_path: Path) -> None:
    archive = _zip(tmp_path / "a.zip", {"a.wav": bytes(20 * 2**20)}, packing=zipfile.ZIP_DEFLATED)

    assert "over a hundred times its size" in _refusal(archive)


@pytest.mark.fault("F4")
@pytest.mark.parametrize("name", ["bomb.wav"])
def test_a_bomb_beside_honest_files_stays_in_the_archive(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as opened:
        opened.writestr("a.wav", os.urandom(2**18))
        opened.writestr(name, bytes(8 * 2**20), zipfile.ZIP_DEFLATED)

    unpacked = unpack(tmp_path / "a.zip", tmp_path / "out")

    assert _files(tmp_path / "out") == ["a.wav"]
    assert "more than its declared" in unpacked.refused[name]


@pytest.mark.fault("F4")
def test_a_size_that_lies_is_counted_as_it_comes_out(tmp_path: Path) -> None:
    archive = _zip(tmp_path / "a.zip", {"a.wav": bytes(2**18)}, packing=zipfile.ZIP_DEFLATED)
    content = archive.read_bytes()
    archive.write_bytes(content.replace(struct.pack("<I", 2**18), struct.pack("<I", 100)))

    message = _refusal(archive)

    assert "no usable clip or list" in message
    assert "a.wav: it is damaged" in message


@pytest.mark.fault("F4")
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(max_files=1), "2 files; the limit is 1"),
        (Limits(max_bytes=100), "there is room for 0.0 GB"),
        (Limits(reserve_bytes=2**62), "there is room for 0.0 GB"),
    ],
)
def test_what_is_too_large_is_refused_with_numbers(
    tmp_path: Path, limits: Limits, words: str
) -> None:
    archive = _zip(tmp_path / "a.zip", {"a.wav": bytes(99), "b.wav": bytes(99)})

    assert words in _refusal(archive, limits)


@pytest.mark.fault("F4")
def test_an_index_that_would_fill_the_memory_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_MAX_INDEX_BYTES", 100)
    archive = _zip(tmp_path / "a.zip", {"a.wav": b"1", "b.wav": b"2"})

    assert "The index of a.zip" in _refusal(archive)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04", b"PK\x05\x06" + bytes(10)])
def test_a_file_that_is_no_archive_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.zip").write_bytes(content)

    assert "a.zip is not a ZIP archive, or is damaged" in _refusal(tmp_path / "a.zip")


def test_an_archive_with_a_password_is_a_sentence(tmp_path: Path) -> None:
    archive = _zip(tmp_path / "a.zip", {"a.wav": b"sound"})
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)

    assert "is encrypted" in _refusal(archive)


def test_every_cut_of_an_archive_is_refused_or_read(tmp_path: Path) -> None:
    whole = _zip(tmp_path / "a.zip", {"a.wav": b"sound" * 20, "b.csv": b"text"}).read_bytes()

    for length in range(0, len(whole), 7):
        (tmp_path / "a.zip").write_bytes(whole[:length])
        assert "damaged" in _refusal(tmp_path / "a.zip")


def test_korean_names_of_old_packers_are_read(tmp_path: Path) -> None:
    name = "\ud55c\uae00.wav"
    archive = _zip(tmp_path / "a.zip", {"XXXX.wav": b"sound"})
    archive.write_bytes(archive.read_bytes().replace(b"XXXX", "\ud55c\uae00".encode("cp949")))

    unpack(archive, tmp_path / "out")

    assert _files(tmp_path / "out") == [name]


def test_an_archive_dropped_on_the_page_becomes_a_data_folder(tmp_path: Path) -> None:
    sound = write_tone(tmp_path / "a.wav").read_bytes()
    members = {"some/voice/metadata.csv": ROW.encode(), "some/voice/wavs/a.wav": sound}
    studio = make_studio(tmp_path)

    data = store_upload(studio, [str(_zip(tmp_path / "a.zip", members))], "")

    assert Path(data.train_data).is_relative_to(studio.uploads)
    assert [clip.text for clip in read_manifest(data).clips] == ["one"]


def test_an_archive_of_sounds_without_a_list_says_what_is_missing(tmp_path: Path) -> None:
    sound = write_tone(tmp_path / "a.wav").read_bytes()
    archive = _zip(tmp_path / "a.zip", {"voice/a.wav": sound, "voice/b.wav": sound})

    with pytest.raises(DataError, match="contains 2 audio files, but no list with their texts"):
        store_upload(make_studio(tmp_path), [str(archive)], "")


def test_an_archive_comes_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Drop one ZIP with the list and its clips"):
        store_upload(make_studio(tmp_path), ["a.zip", "a.csv"], "")
