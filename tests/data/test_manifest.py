"""Lists of any common layout become clips and problems; no row vanishes."""

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pandas
import pytest
import soundfile

from tests.helpers.clips import make_tone, write_list, write_tone
from trainer.core.errors import DataError
from trainer.core.run_config import DataConfig
from trainer.data.lists.manifest import Manifest, read_manifest

HANGUL = "\uc548\ub155\ud558\uc138\uc694 \ubc18\uac11\uc2b5\ub2c8\ub2e4"


def read(path: Path, **options: object) -> Manifest:
    values = {"train_csv": str(path), "eval_fraction": 0.0} | options
    return read_manifest(DataConfig(**values))  # type: ignore[arg-type]


def texts(manifest: Manifest) -> list[str]:
    return [clip.text for clip in manifest.clips]


def kinds(manifest: Manifest) -> list[tuple[int, str]]:
    return [(problem.line, problem.kind) for problem in manifest.problems]


def write_clips(folder: Path, *names: str) -> None:
    for name in names:
        write_tone(folder / name)


LAYOUTS = {
    "coqui": (
        "metadata.csv",
        ["audio_file|text|speaker_name", "wavs/a.wav|Hello there.|ann", "wavs/b.wav|Good day.|bob"],
        ("Coqui", "|", ["Hello there.", "Good day."], ["ann", "bob"], ["en", "en"]),
    ),
    "coqui, columns in another order": (
        "metadata.csv",
        ["Speaker Name|text|audio_file", "ann|Hello there.|wavs/a.wav", "bob|Good day.|wavs/b.wav"],
        ("table with a header", "|", ["Hello there.", "Good day."], ["ann", "bob"], ["en", "en"]),
    ),
    "ljspeech": (
        "metadata.csv",
        ["a|It is 5 pm now.|It is five pm now.", "b|No. 7 wins.|Number seven wins."],
        (
            "LJSpeech", "|", ["It is five pm now.", "Number seven wins."], ["speaker", "speaker"],
            ["en", "en"],
        ),
    ),
    "ljspeech with a row of two columns": (
        "metadata.csv",
        ["a|It is noon.|It is noon.", "b|Good day to you.", "c|Oh, yes, indeed.|Oh, yes, indeed."],
        (
            "LJSpeech", "|", ["It is noon.", "Good day to you.", "Oh, yes, indeed."],
            ["speaker"] * 3, ["en"] * 3,
        ),
    ),
    "piper": (
        "metadata.csv",
        ["a.wav|Hello there.", "b.wav|Good day."],
        ("Piper", "|", ["Hello there.", "Good day."], ["speaker"] * 2, ["en"] * 2),
    ),
    "piper with speakers": (
        "metadata.csv",
        ["a.wav|ann|Hello there.", "b.wav|ann|Good day.", "c.wav|bob|Come in, please."],
        (
            "Piper (several speakers)", "|", ["Hello there.", "Good day.", "Come in, please."],
            ["ann", "ann", "bob"], ["en"] * 3,
        ),
    ),
    "f5": (
        "metadata.csv",
        ["audio_file|text", "wavs/a.wav|Hello there.", "b|Good day."],
        ("F5-TTS", "|", ["Hello there.", "Good day."], ["speaker"] * 2, ["en"] * 2),
    ),
    "gpt-sovits": (
        "slicer.list",
        [r"D:\voices\wavs\a.wav|ann|ZH|Ni hao.", "wavs/b.wav|ann|JP|Konnichiwa."],
        ("GPT-SoVITS", "|", ["Ni hao.", "Konnichiwa."], ["ann"] * 2, ["zh", "ja"]),
    ),
    "style-bert-vits2": (
        "esd.list",
        ["a.wav|ann|KO|Annyeong.", "b.wav|ann|EN|Good day."],
        ("Style-Bert-VITS2", "|", ["Annyeong.", "Good day."], ["ann"] * 2, ["ko", "en"]),
    ),
    "preprocessed fastspeech 2": (
        "train.txt",
        ["a|ann|{HH AH0 L OW1}|Hello.", "b|bob|{G UH1 D}|Good."],
        ("FastSpeech 2 (preprocessed)", "|", ["Hello.", "Good."], ["ann", "bob"], ["en"] * 2),
    ),
    "commas with a header": (
        "t.csv",
        ["path,sentence,client_id,locale", 'a.wav,"So, ""you"" know.",ann,en_GB', "b.wav,1e5,,fa"],
        (
            "table with a header", ",", ['So, "you" know.', "1e5"], ["ann", "speaker"],
            ["en-GB", "fa"],
        ),
    ),
    "semicolons without a header": (
        "t.csv",
        ["a.wav;Yes, of course.", "b.wav;NA"],
        ("table without a header", ";", ["Yes, of course.", "NA"], ["speaker"] * 2, ["en"] * 2),
    ),
    "tabs with a header in other words": (
        "t.tsv",
        ["Datei\tSprecher\tSatz", "a.wav\tann\tOne, two | three.", "b.wav\tann\tFour; five.", ""],
        (
            "table without a header", "\t", ["One, two | three.", "Four; five."], ["ann"] * 2,
            ["en"] * 2,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.fault("C3")
def test_each_common_layout_is_recognised_and_shown(tmp_path: Path, layout: str) -> None:
    file_name, rows, expected = LAYOUTS[layout]
    write_clips(tmp_path / "wavs", "a.wav", "b.wav", "c.wav")

    manifest = read(write_list(tmp_path / file_name, *rows))

    clips = manifest.clips
    found = [clip.speaker for clip in clips], [clip.language for clip in clips]
    source = manifest.sources[0]
    assert (source.dialect, source.separator, texts(manifest), *found) == expected
    assert manifest.problems == ()


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp949"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.fault("C1", "C2", "C5")
def test_korean_text_survives_every_encoding_and_line_end(
    tmp_path: Path, encoding: str, end: str
) -> None:
    write_clips(tmp_path, "a.wav", "b.wav")
    rows = ["audio_file|text", f"a.wav|{HANGUL}", f"b.wav|{HANGUL}!"]

    manifest = read(write_list(tmp_path / "t.csv", *rows, encoding=encoding, end=end))

    assert texts(manifest) == [HANGUL, f"{HANGUL}!"]
    assert manifest.sources[0].encoding == encoding


def test_japanese_and_chinese_legacy_encodings_are_told_apart(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav", "b.wav")
    japanese = "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c"
    chinese = "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u6211\u4eec\u53bb\u516c\u56ed"

    first = read(write_list(tmp_path / "j.csv", f"a.wav|{japanese}", encoding="cp932"))
    second = read(write_list(tmp_path / "c.csv", f"b.wav|{chinese}", encoding="gb18030"))

    assert (first.sources[0].encoding, texts(first)) == ("cp932", [japanese])
    assert (second.sources[0].encoding, texts(second)) == ("gb18030", [chinese])


def test_western_bytes_that_fit_no_strict_encoding_are_refused(tmp_path: Path) -> None:
    path = write_list(tmp_path / "t.csv", "a.wav|Un \xe9t\xe9 \xe0 Paris", encoding="latin-1")

    with pytest.raises(DataError, match="Save it again as UTF-8"):
        read(path)


@pytest.mark.fault("C5")
def test_bytes_that_are_not_utf8_cost_their_own_row_only(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav", "b.wav", "c.wav")
    rows = [f"a.wav|{HANGUL}".encode(), b"b.wav|caf\xe9 here", f"c.wav|{HANGUL}.".encode()]
    path = tmp_path / "t.csv"
    path.write_bytes(b"\n".join(rows))

    manifest = read(path)

    assert texts(manifest) == [HANGUL, f"{HANGUL}."]
    assert kinds(manifest) == [(2, "damaged_text")]


@pytest.mark.fault("C6")
def test_damaged_bytes_in_a_speaker_or_a_header_reach_no_message(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav", "b.wav")
    rows = [b"audio_file|text|speaker|no\xff", f"a.wav|{HANGUL}|ann|".encode(), b"b.wav|Two|b\xff|"]
    path = tmp_path / "t.csv"
    path.write_bytes(b"\n".join([*rows, f"b.wav|{HANGUL}".encode()]))

    manifest = read(path)

    assert kinds(manifest) == [(3, "damaged_text"), (4, "wrong_columns")]
    assert json.dumps(manifest.summary(), ensure_ascii=False).encode()
    assert [str(problem).encode() for problem in manifest.problems]


@pytest.mark.fault("C4")
def test_quotes_in_pipe_rows_are_letters(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav", "b.wav", "c.wav", "d.wav")
    rows = ['a.wav|"Hello, he said.', 'b.wav|She said "no" twice.', "c.wav|Bye.", 'd.wav|"Yes."']

    manifest = read(write_list(tmp_path / "t.csv", *rows))

    assert texts(manifest) == ['"Hello, he said.', 'She said "no" twice.', "Bye.", '"Yes."']


def test_pipe_rows_written_by_pandas_lose_their_doubled_quotes(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav", "b.wav")
    sentences = ['He said "no" twice.', "This | that."]
    frame = pandas.DataFrame({"audio_file": ["a.wav", "b.wav"], "text": sentences})
    frame.to_csv(tmp_path / "t.csv", sep="|", index=False)

    manifest = read(tmp_path / "t.csv")

    assert texts(manifest) == sentences


@pytest.mark.parametrize(("cell", "text"), [('"Yes"', "Yes"), ('Size 5"', 'Size 5"')])
@pytest.mark.fault("C4")
def test_an_unclosed_quote_costs_one_row(tmp_path: Path, cell: str, text: str) -> None:
    write_clips(tmp_path, "a.wav", "b.wav", "c.wav", "d.wav")
    rows = ["audio,text", "a.wav,Fine.", 'b.wav,"Never closed', "c.wav,Also fine.", f"d.wav,{cell}"]

    manifest = read(write_list(tmp_path / "t.csv", *rows))

    assert texts(manifest) == ["Fine.", "Also fine.", text]
    assert kinds(manifest) == [(3, "broken_row")]


def test_quoted_line_ends_belong_to_the_text(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav", "b.wav")
    rows = ["audio,text", 'a.wav,"First line,', "", 'second line."', "b.wav,Next."]

    manifest = read(write_list(tmp_path / "t.csv", *rows))

    assert [(clip.line, clip.text) for clip in manifest.clips] == [
        (2, "First line, second line."),
        (5, "Next."),
    ]


def test_text_that_looks_like_data_stays_text(tmp_path: Path) -> None:
    words = ["NA", "null", "1e5", "007", "True", "inf"]
    write_clips(tmp_path, *(f"{word}.wav" for word in words))

    manifest = read(write_list(tmp_path / "t.csv", *(f"{word}|{word}" for word in words)))

    assert texts(manifest) == words
    assert list(manifest.table()["text"]) == words
    assert [clip.audio_path for clip in manifest.clips] == [
        str(tmp_path / f"{word}.wav") for word in words
    ]


@pytest.mark.fault("C6", "C8", "C12", "C15", "D1", "D2", "D9")
def test_every_kind_of_bad_row_is_named_with_its_line(tmp_path: Path) -> None:
    write_clips(tmp_path, "good.wav", "twice.wav", "again.wav", "empty_text.wav", "nul.wav")
    write_tone(tmp_path / "short.wav", 0.1)
    write_tone(tmp_path / "long.wav", 3.0)
    (tmp_path / "zero.wav").write_bytes(b"")
    (tmp_path / "page.wav").write_text("<html>not found</html>")
    whole = write_tone(tmp_path / "cut.wav").read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[: len(whole) // 2])
    rows = [
        "audio_file|text",
        "good.wav|Good.",
        "goood.wav|Missing.",
        "empty_text.wav| ?! ",
        "zero.wav|Zero bytes.",
        "page.wav|A page.",
        "cut.wav|Half a file.",
        "short.wav|Short.",
        "long.wav|Long.",
        "twice.wav|Twice.",
        "twice.wav|Twice.",
        "nul.wav|A\x00B",
        "good.wav",
        "good.wav|too|many|cells",
        "",
        "again.wav|Again.",
    ]

    manifest = read(write_list(tmp_path / "t.csv", *rows), max_duration_s=2.0)

    assert texts(manifest) == ["Good.", "Twice.", "Again."]
    assert kinds(manifest) == [
        (3, "missing_audio"),
        (4, "empty_text"),
        (5, "empty_audio"),
        (6, "unreadable_audio"),
        (7, "truncated_audio"),
        (8, "too_short"),
        (9, "too_long"),
        (11, "duplicate"),
        (12, "damaged_text"),
        (13, "wrong_columns"),
        (14, "wrong_columns"),
    ]
    assert (manifest.sources[0].num_rows, manifest.sources[0].num_blank_lines) == (14, 1)
    assert str(manifest.problems[0]) == (
        "Line 3 of t.csv: goood.wav was not found. Did you mean good.wav?"
    )
    assert manifest.problems[6].duration_s == pytest.approx(3.0)
    assert manifest.summary()["lost"]["too_long"]["minutes"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "cell",
    [
        "wavs/a.wav",
        "./wavs/a.wav",
        r"wavs\a.wav",
        "a",
        "a.wav",
        "A.WAV",
        "wavs/a.flac",
        "WAVS/a.wav",
        r"C:\data\set\wavs\a.wav",
        "/home/someone/set/wavs/a.wav",
        "wavs/../wavs/a.wav",
        " a.wav ",
    ],
)
@pytest.mark.fault("C15", "B12")
def test_audio_is_found_however_it_is_written(tmp_path: Path, cell: str) -> None:
    write_clips(tmp_path / "wavs", "a.wav", "ab.wav")

    manifest = read(write_list(tmp_path / "t.csv", f"{cell}|Hello."))

    assert [clip.audio_path for clip in manifest.clips] == [str(tmp_path / "wavs/a.wav")]


@pytest.mark.parametrize(
    "cell",
    [
        "https://example.org/a.wav",
        "../a.wav",
        "wavs/../../a.wav",
        r"..\a.wav",
        r"\\server\share\a.wav",
        "file:///etc/a.wav",
    ],
)
@pytest.mark.fault("C14")
def test_paths_that_lead_elsewhere_are_refused_with_a_reason(tmp_path: Path, cell: str) -> None:
    write_clips(tmp_path, "a.wav")
    (tmp_path / "set").mkdir()

    manifest = read(write_list(tmp_path / "set/t.csv", f"{cell}|Hello."))

    assert kinds(manifest) == [(1, "refused_path")]


def test_an_absolute_path_of_ones_own_is_taken(tmp_path: Path) -> None:
    write_clips(tmp_path / "elsewhere", "a.wav")
    (tmp_path / "set").mkdir()

    manifest = read(write_list(tmp_path / "set/t.csv", f"{tmp_path}/elsewhere/a.wav|Hello."))

    assert [clip.audio_path for clip in manifest.clips] == [str(tmp_path / "elsewhere/a.wav")]


@pytest.mark.fault("B11")
def test_another_case_is_not_guessed_where_two_files_fit(tmp_path: Path) -> None:
    write_clips(tmp_path, "Abc.wav", "aBc.wav")

    manifest = read(write_list(tmp_path / "t.csv", "abc.wav|Hello."))

    assert kinds(manifest) == [(1, "missing_audio")]


@pytest.mark.parametrize("on_disk", ["NFC", "NFD"])
@pytest.mark.parametrize("in_list", ["NFC", "NFD"])
@pytest.mark.fault("B13")
def test_decomposed_hangul_names_match_composed_ones(
    tmp_path: Path, on_disk: str, in_list: str
) -> None:
    name = "\ud55c\uae00 \ud30c\uc77c"
    write_clips(tmp_path, unicodedata.normalize(on_disk, f"{name}.wav"))  # type: ignore[arg-type]
    cell = unicodedata.normalize(in_list, f"{name}.wav|{HANGUL}")  # type: ignore[arg-type]

    manifest = read(write_list(tmp_path / "t.csv", cell))

    assert texts(manifest) == [HANGUL]


@pytest.mark.parametrize(
    "name", ["-rf.wav", 'it\'s "quoted".wav', "  two  spaces .wav", "#1;$(x) %s.wav", "a,b;c.wav"]
)
def test_awkward_file_names_are_only_names(tmp_path: Path, name: str) -> None:
    write_clips(tmp_path / "wavs", name)

    manifest = read(write_list(tmp_path / "t.csv", "audio_file|text", f"wavs/{name}|Hello."))

    assert [Path(clip.audio_path).name for clip in manifest.clips] == [name]


@pytest.mark.fault("D11")
def test_a_pipe_that_never_ends_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.wav")

    manifest = read(write_list(tmp_path / "t.csv", "a.wav|Hello."))

    assert kinds(manifest) == [(1, "missing_audio")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \r\n", "is empty"),
        (b"PK\x03\x04rest", "Excel"),
        (b"just a line\nand another\n", "one column"),
        (b'{"audio": "a.wav", "text": "Hi"}\n', "is JSON"),
        (b"\xff\xfea\x00|\x00\xd8", "damaged at byte"),
    ],
)
def test_a_file_that_is_no_list_is_a_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)

    with pytest.raises(DataError, match=message):
        read(path)


def test_a_list_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "t.csv")
    with pytest.raises(DataError, match="Choose a train CSV"):
        read_manifest(DataConfig())


def test_a_header_alone_is_an_empty_manifest(tmp_path: Path) -> None:
    manifest = read(write_list(tmp_path / "t.csv", "audio_file|text|speaker_name"))

    assert (manifest.clips, manifest.problems) == ((), ())
    assert manifest.summary()["num_clips"] == 0
    assert len(manifest.table()) == 0


@pytest.mark.fault("C12")
def test_a_clip_in_both_lists_stays_in_the_eval_list(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav", "b.wav")
    copy = tmp_path / "copy_of_b.wav"
    copy.write_bytes((tmp_path / "b.wav").read_bytes())
    write_clips(tmp_path, "c.wav")
    train = write_list(tmp_path / "train.csv", "a.wav|One.", "b.wav|Two.", "c.wav|Three.")
    evals = write_list(tmp_path / "eval.csv", "copy_of_b.wav|Two.", "a.wav|One.")

    manifest = read(train, eval_csv=str(evals))

    assert [clip.text for clip in manifest.train] == ["Three."]
    assert [clip.text for clip in manifest.val] == ["Two.", "One."]
    assert kinds(manifest) == [(1, "leak"), (2, "leak")]
    assert manifest.problems[0].duration_s == pytest.approx(1.0)


def test_the_same_audio_with_another_text_is_a_problem(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav")

    manifest = read(write_list(tmp_path / "t.csv", "a.wav|One.", "a.wav|Two."))

    assert texts(manifest) == ["One."]
    assert "a different text" in manifest.problems[0].reason


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["metadata_train.csv", "metadata_eval.csv", "metadata.csv"], ["train", "val"]),
        (["train.csv", "eval.csv"], ["train", "val"]),
        (["metadata.csv", "notes.csv"], [""]),
        (["esd.list"], [""]),
        (["anything.list", "speakers.csv"], [""]),
    ],
)
def test_a_data_folder_names_its_own_lists(
    tmp_path: Path, files: list[str], splits: list[str]
) -> None:
    for name in files:
        write_list(tmp_path / name, f"{Path(name).stem}.wav|Text of {name}.")
        write_clips(tmp_path / "wavs", f"{Path(name).stem}.wav")

    manifest = read_manifest(DataConfig(train_data=str(tmp_path)))

    assert [Path(source.path).name for source in manifest.sources] == files[: len(splits)]
    assert [source.split for source in manifest.sources] == splits


def test_a_data_folder_without_a_list_or_with_two_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no list of clips"):
        read_manifest(DataConfig(train_data=str(tmp_path)))
    write_list(tmp_path / "one.csv", "a.wav|One.")
    write_list(tmp_path / "two.csv", "b.wav|Two.")
    with pytest.raises(DataError, match="several lists"):
        read_manifest(DataConfig(train_data=str(tmp_path)))


def write_recordings(folder: Path, count: int, clips_each: int) -> Path:
    rows = []
    for recording in range(count):
        for clip in range(clips_each):
            name = f"talk{chr(97 + recording)}_{clip:04d}.wav"
            write_tone(folder / name, 0.4, 8000)
            rows.append(f"{name}|Sentence {recording} {clip}.")
    return write_list(folder / "t.csv", *rows)


def test_a_split_keeps_recordings_whole_and_is_seeded(tmp_path: Path) -> None:
    path = write_recordings(tmp_path, 8, 4)
    data = DataConfig(train_csv=str(path), eval_fraction=0.25)

    first, again, other = (read_manifest(data, seed=seed) for seed in (1, 1, 2))

    held_out = {clip.recording for clip in first.val}
    assert held_out.isdisjoint({clip.recording for clip in first.train})
    assert len(first.val) == 8
    assert [clip.id for clip in first.val] == [clip.id for clip in again.val]
    assert held_out != {clip.recording for clip in other.val}
    assert first.notes == ("32 rows have no speaker; they are treated as one, 'speaker'.",)


def test_clips_added_later_move_no_other_clip(tmp_path: Path) -> None:
    path = write_recordings(tmp_path, 12, 2)
    before = {clip.id: clip.split for clip in read_manifest(DataConfig(train_csv=str(path))).clips}

    for number in range(4):
        write_tone(tmp_path / f"talka_{number:04d}9.wav", 0.4, 8000)
    extra = [f"talka_{number:04d}9.wav|More {number}." for number in range(4)]
    path.write_text(path.read_text() + "\n".join(extra))
    after = {clip.id: clip.split for clip in read_manifest(DataConfig(train_csv=str(path))).clips}

    assert len(after) == len(before) + 4
    assert {clip_id: after[clip_id] for clip_id in before} == before


def test_one_recording_is_split_by_clip_and_the_page_is_told(tmp_path: Path) -> None:
    path = write_recordings(tmp_path, 1, 12)

    manifest = read_manifest(DataConfig(train_csv=str(path)))

    assert (len(manifest.train), len(manifest.val)) == (10, 2)
    assert "cannot be told apart" in manifest.notes[-1]


@pytest.mark.fault("C13")
def test_a_speaker_with_one_recording_is_not_held_out_whole(tmp_path: Path) -> None:
    names = [f"{speaker}_{clip:03d}" for speaker in ("p225", "p226") for clip in range(6)]
    write_clips(tmp_path, *(f"{name}.wav" for name in names))
    rows = [f"{name}|{name[:4]}|Sentence of {name}." for name in names]

    manifest = read_manifest(DataConfig(train_csv=str(write_list(tmp_path / "t.csv", *rows))))

    assert {clip.speaker for clip in manifest.train} == {"p225", "p226"}
    assert len(manifest.val) == 2


@pytest.mark.parametrize("seed", range(6))
def test_no_speaker_is_heard_in_validation_only(tmp_path: Path, seed: int) -> None:
    names = ["ann_x_1", "ann_y_1", *(f"bob_{letter}_1" for letter in "abcdefgh")]
    write_clips(tmp_path, *(f"{name}.wav" for name in names))
    rows = ["audio_file|text|speaker", *(f"{name}|Text {name}.|{name[:3]}" for name in names)]
    path = write_list(tmp_path / "t.csv", *rows)

    manifest = read_manifest(DataConfig(train_csv=str(path), eval_fraction=0.5), seed=seed)

    assert {clip.speaker for clip in manifest.train} == {"ann", "bob"}
    assert len(manifest.val) == 5


def test_two_recordings_of_unlike_size_hold_out_the_smaller(tmp_path: Path) -> None:
    write_clips(tmp_path, "long_1.wav", "long_2.wav", "long_3.wav", "long_4.wav", "brief_1.wav")
    rows = [f"{name}|Text {name}." for name in ("long_1", "long_2", "long_3", "long_4", "brief_1")]

    manifest = read_manifest(DataConfig(train_csv=str(write_list(tmp_path / "t.csv", *rows))))

    assert {clip.recording for clip in manifest.val} == {"brief"}


def test_the_ledger_has_one_row_for_every_row(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav", "c.wav")
    path = write_list(tmp_path / "t.csv", "audio_file|text", "a.wav|A.", "b.wav|B.", "c.wav|C.")

    table = read(path).table()

    assert list(table["line"]) == [2, 3, 4]
    assert list(table["status"]) == ["kept", "dropped", "kept"]
    assert list(table["audio_file"]) == ["a.wav", "b.wav", "c.wav"]
    assert table["reason"][1] == "b.wav was not found."
    assert not table["text"].isna().any()


@pytest.mark.fault("C17")
def test_an_exported_ledger_runs_no_formula(tmp_path: Path) -> None:
    write_clips(tmp_path, "-a.wav", "b.wav")
    rows = ["audio_file|text", "-a.wav|=cmd|' /C calc'!A0", "b.wav|+1 is @ home", "-a.wav|=1+1"]
    manifest = read(write_list(tmp_path / "t.csv", *rows))

    manifest.write_csv(tmp_path / "ledger.csv")

    cells = pandas.read_csv(tmp_path / "ledger.csv", dtype=str, keep_default_na=False)
    flat = [cell for row in cells.to_numpy().tolist() for cell in row]
    assert not [cell for cell in flat if cell.startswith(("=", "+", "-", "@"))]
    assert "'+1 is @ home" in flat


def test_the_summary_is_json_and_adds_up(tmp_path: Path) -> None:
    write_tone(tmp_path / "a.wav", 1.5)
    write_tone(tmp_path / "b.wav", 4.5)
    rows = ["audio_file|text|speaker_name", "a.wav|Aa.|ann", "b.wav|Bb.|bob"]

    summary = json.loads(json.dumps(read(write_list(tmp_path / "t.csv", *rows)).summary()))

    assert summary["minutes"] == pytest.approx(0.1)
    assert summary["speakers"]["bob"]["minutes"] == pytest.approx(0.075)
    assert sum(summary["durations"]["counts"]) == 2
    assert summary["characters"]["."] == 2


def test_ids_stay_when_the_folder_moves(tmp_path: Path) -> None:
    write_clips(tmp_path / "one/wavs", "a.wav")
    write_list(tmp_path / "one/t.csv", "a|Hello.")
    before = read(tmp_path / "one/t.csv").clips[0].id

    (tmp_path / "one").rename(tmp_path / "two")

    assert read(tmp_path / "two/t.csv").clips[0].id == before


def test_headers_give_durations_in_every_container(tmp_path: Path) -> None:
    names = ["a.wav", "b.flac", "c.ogg", "d.mp3", "e.aiff", "f.WAV"]
    for name in names:
        soundfile.write(str(tmp_path / name), make_tone(1.25, 8000, 300), 8000)
    rows = [f"{name}|Clip {name}" for name in names]

    manifest = read(write_list(tmp_path / "t.csv", *rows))

    assert [clip.duration_s for clip in manifest.clips] == pytest.approx([1.25] * 6, abs=0.15)


def test_reading_a_manifest_loads_no_tensor_library(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav")
    path = write_list(tmp_path / "t.csv", "a.wav|Hello.")
    program = (
        "import sys\n"
        "from trainer.core.run_config import DataConfig\n"
        "from trainer.data.lists.manifest import read_manifest\n"
        "read_manifest(DataConfig(train_csv=sys.argv[1])).table()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    root = Path(__file__).parent.parent.parent

    result = subprocess.run([sys.executable, "-c", program, str(path)], cwd=root, check=False)

    assert result.returncode == 0


def test_progress_reaches_the_number_of_files(tmp_path: Path) -> None:
    write_clips(tmp_path, "a.wav", "b.wav")
    path = write_list(tmp_path / "t.csv", "a.wav|Hello.", "b.wav|Bye.")
    calls: list[tuple[str, int, int]] = []

    read_manifest(
        DataConfig(train_csv=str(path)),
        progress=lambda phase, done, total: calls.append((phase, done, total)),
    )

    assert calls[-1] == ("Reading audio headers", 2, 2)
