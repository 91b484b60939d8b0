"""Data: lists and clips from the browser or this computer, checked row by row before training."""

import re
import shutil
import uuid
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import soundfile

from trainer.config import DataConfig
from trainer.data.manifest import Manifest
from trainer.errors import DataError
from webui.actions import toasts
from webui.form import Values
from webui.run_form import DataForm
from webui.studio import Studio, demo_data

PAGE_ROWS = 200
_AUDIO = (".wav", ".flac", ".ogg", ".mp3")
_LISTS = (".csv", ".tsv", ".txt", ".list")
_EVAL_NAME = re.compile(r"(^|[^a-z])(eval|val|valid|validation|dev|test)([^a-z]|$)")
_COLUMNS = {
    "source": "List", "line": "Line", "audio_file": "Audio file", "text": "Text",
    "speaker": "Speaker", "duration_s": "Seconds", "split": "Split", "status": "Status",
    "reason": "Reason", "remedy": "What to do", "clip_id": "Clip",
}  # fmt: skip


def store_upload(studio: Studio, files: list[str], audio_folder: str) -> DataConfig:
    """Keep uploaded lists and clips together in one folder and return the data they make.

    Raises:
        DataError: there is no list among the files, or the audio folder does not exist.
    """
    paths = [Path(file) for file in files]
    lists = [path for path in paths if path.suffix.lower() in _LISTS]
    if not lists:
        raise DataError(
            "There is no list among the files. Expected a CSV, TSV, TXT or .list file with an "
            "audio file and its text on every line."
        )
    folder = studio.uploads / uuid.uuid4().hex[:12]
    (folder / "wavs").mkdir(parents=True)
    for path in paths:
        if path in lists:
            shutil.copyfile(path, folder / path.name)
        elif path.suffix.lower() in _AUDIO:
            shutil.copyfile(path, folder / "wavs" / path.name)
    if audio_folder.strip():
        source = studio.absolute(audio_folder)
        if not Path(source).is_dir():
            raise DataError(f"{source} is not a folder. Give the folder that holds the clips.")
        (folder / "audio").symlink_to(source, target_is_directory=True)
    evals = [path.name for path in lists if _EVAL_NAME.search(path.stem.lower())]
    trains = [path.name for path in lists if path.name not in evals] or evals
    eval_csv = str(folder / evals[0]) if evals and evals[0] != trains[0] else ""
    return DataConfig(train_csv=str(folder / trains[0]), eval_csv=eval_csv)


def report(manifest: Manifest) -> str:
    """Return the totals of a manifest as HTML; every foreign word is escaped."""
    summary = manifest.summary()
    facts = [
        f"<b>{summary['num_clips']}</b> clips",
        f"<b>{summary['minutes']:.1f}</b> minutes",
        f"<b>{summary['num_train']}</b> to train on, <b>{summary['num_val']}</b> to evaluate",
        f"<b>{summary['num_problems']}</b> rows with problems "
        f"({summary['minutes_lost']:.1f} minutes lost)",
        "speakers: " + _names(list(summary["speakers"])),
        "sample rates: " + _names([f"{rate} Hz" for rate in summary["sample_rates"]]),
    ]
    sources = [
        f"{Path(source['path']).name}: {source['num_rows']} rows, read as {source['dialect']}, "
        f"{source['encoding']}"
        for source in summary["sources"]
    ]
    notes = "".join(f'<div class="notice">{_safe(note)}</div>' for note in manifest.notes)
    lines = "".join(f'<span class="fact">{_safe(source)}</span>' for source in sources)
    chips = "".join(f'<span class="fact">{fact}</span>' for fact in facts)
    bars = _histogram(summary["durations"]["edges_s"], summary["durations"]["counts"])
    return f'<div class="states"><div>{lines}</div><div>{chips}</div></div>{notes}{bars}'


def ledger_page(manifest: Manifest, page: int, only_problems: bool) -> tuple[list[list[str]], str]:
    """Return one page of the ledger as text cells, and what the page holds in words."""
    table = manifest.table()
    if only_problems:
        table = table[table["status"] != "kept"]
    pages = max(1, -(-len(table) // PAGE_ROWS))
    page = min(max(1, page), pages)
    first = (page - 1) * PAGE_ROWS
    part = table.iloc[first : first + PAGE_ROWS]
    rows = [
        [_cell(name, value) for name, value in zip(_COLUMNS, row, strict=True)]
        for row in part[list(_COLUMNS)].itertuples(index=False)
    ]
    if not rows:
        return [], "No rows with problems." if only_problems else "No rows."
    return rows, f"Rows {first + 1} to {first + len(rows)} of {len(table)}, page {page} of {pages}."


def clip_audio(manifest: Manifest, clip_id: str) -> tuple[int, Any] | None:
    """Return a clip of the manifest as (sample rate, int16 (T_wav,) or (T_wav, channels))."""
    for clip in manifest.clips:
        if clip.id == clip_id:
            wave, sample_rate = soundfile.read(clip.audio_path, dtype="int16")
            return sample_rate, wave
    return None


def build(studio: Studio) -> DataForm:
    """Lay the tab out, connect it, and return the form of the data."""
    with gr.Tab("Data", id="data", elem_id="tab-data"):
        gr.Markdown(
            "### Recordings\nA list with an audio file and its text on every line: the common "
            "layouts are recognised. WAV, FLAC, OGG and MP3."
        )
        with gr.Row():
            with gr.Column(min_width=300):
                files = gr.File(
                    label="Train CSV, Eval CSV and clips from this browser",
                    file_count="multiple",
                    file_types=[*_LISTS, *_AUDIO],
                    height=150,
                    elem_id="upload",
                )
                audio_folder = gr.Textbox(
                    label="Folder of the clips",
                    info="Only if you drop a list whose clips already lie on the server.",
                    interactive=True,
                    max_lines=1,
                    elem_id="audio-folder",
                )
                use_demo = gr.Button("Use the demo clips", size="sm", elem_id="use-demo")
            with gr.Column(min_width=300, scale=2):
                form = DataForm()
                check = gr.Button("Check the data", variant="primary", elem_id="check-data")
        parts = _build_ledger()
    _wire(studio, form, check, files, audio_folder, use_demo, parts)
    return form


def _build_ledger() -> dict[str, Any]:
    parts: dict[str, Any] = {"report": gr.HTML(elem_id="data-report")}
    with gr.Column(visible=False) as holder:
        with gr.Row():
            parts["only_problems"] = gr.Checkbox(
                label="Only problems", interactive=True, elem_id="only-problems", min_width=200
            )
            parts["page"] = gr.Number(
                value=1, label="Page", precision=0, minimum=1, interactive=True, min_width=120
            )
            parts["download"] = gr.DownloadButton("Download the ledger (CSV)", size="sm")
        parts["where"] = gr.Markdown()
        with gr.Row():
            with gr.Column(scale=4, min_width=300):
                parts["table"] = gr.Dataframe(
                    headers=list(_COLUMNS.values()),
                    datatype="str",
                    type="array",
                    interactive=False,
                    wrap=True,
                    max_height=460,
                    static_columns=list(range(len(_COLUMNS))),
                    column_widths=["90px", "60px", "170px", "280px", "90px", "80px", "70px",
                                   "80px", "240px", "240px", "150px"],
                    elem_id="ledger",
                )  # fmt: skip
            with gr.Column(scale=1, min_width=260):
                parts["player"] = gr.Audio(
                    label="Click a row to hear it",
                    interactive=False,
                    buttons=["download"],
                    elem_id="clip-player",
                )
    parts["holder"] = holder
    return parts


def _wire(
    studio: Studio,
    form: DataForm,
    check: gr.Button,
    files: gr.File,
    audio_folder: gr.Textbox,
    use_demo: gr.Button,
    parts: dict[str, Any],
) -> None:
    fields = set(form.widgets.values())
    listing = {parts["only_problems"], parts["page"]}

    def show_report(values: Values) -> dict[Any, Any]:
        with toasts():
            manifest = studio.read_manifest(form.config(values), fresh=True)
            ledger = studio.scratch / f"ledger-{uuid.uuid4().hex[:8]}.csv"
            manifest.write_csv(ledger)
        rows, words = ledger_page(manifest, 1, values[parts["only_problems"]])
        return {
            parts["report"]: report(manifest),
            parts["holder"]: gr.Column(visible=True),
            parts["table"]: rows,
            parts["where"]: words,
            parts["page"]: 1,
            parts["download"]: str(ledger),
            parts["player"]: None,
        }

    def show_rows(values: Values) -> tuple[list[list[str]], str]:
        with toasts():
            manifest = studio.read_manifest(form.config(values))
        return ledger_page(
            manifest, int(values[parts["page"]] or 1), values[parts["only_problems"]]
        )

    def play(values: Values, event: gr.SelectData) -> tuple[int, Any] | None:
        with toasts():
            manifest = studio.read_manifest(form.config(values))
        return clip_audio(manifest, str(event.row_value[-1]))

    def take_upload(values: Values) -> dict[Any, Any]:
        with toasts():
            data = store_upload(studio, values[files] or [], values[audio_folder] or "")
        return {
            form.widgets["train_csv"]: data.train_csv,
            form.widgets["eval_csv"]: data.eval_csv,
        }

    def take_demo() -> dict[Any, Any]:
        return form.fill(vars(demo_data()))

    outputs = [parts[name] for name in
               ("report", "holder", "table", "where", "page", "download", "player")]  # fmt: skip
    quiet: dict[str, Any] = {"api_visibility": "private", "concurrency_limit": None}
    check.click(show_report, fields | listing, outputs, **quiet)
    files.upload(take_upload, {files, audio_folder}, list(fields), **quiet).success(
        show_report, fields | listing, outputs, **quiet
    )
    use_demo.click(take_demo, None, list(fields), **quiet).success(
        show_report, fields | listing, outputs, **quiet
    )
    for widget in (parts["only_problems"], parts["page"]):
        widget.input(show_rows, fields | listing, [parts["table"], parts["where"]], **quiet)
    parts["table"].select(play, fields, parts["player"], **quiet)


def _names(names: list[str], most: int = 8) -> str:
    shown = ", ".join(_safe(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _safe(text: str) -> str:
    """Escape for HTML, and for the template language that Gradio runs over it."""
    return escape(text).replace("{", "&#123;").replace("$", "&#36;").replace("`", "&#96;")


def _cell(name: str, value: Any) -> str:
    if name == "duration_s":
        return "" if value != value else f"{value:.2f}"
    return str(value)


def _histogram(edges_s: list[float], counts: list[int]) -> str:
    most = max(counts, default=0)
    if not most:
        return ""
    bars = []
    for index, (edge, count) in enumerate(zip(edges_s, counts, strict=True)):
        until = f"-{edges_s[index + 1]:g}" if index + 1 < len(edges_s) else "+"
        height = round(60 * count / most)
        bars.append(
            f'<div class="bar" title="{count} clips"><small>{count or ""}</small>'
            f'<i style="height:{height}px"></i><span>{edge:g}{until}</span></div>'
        )
    return f'<div class="histogram"><b>Clips by seconds</b><div>{"".join(bars)}</div></div>'
