"""Data: lists and clips from the browser or this computer, checked row by row before training."""

import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
import soundfile

from trainer.catalog import discover
from trainer.config import DataConfig
from trainer.data.manifest import Manifest
from trainer.errors import DataError
from trainer.specs import ModelFamily
from webui.actions import toasts
from webui.fitness import describe_fitness, judge_for, safe
from webui.form import Values
from webui.run_form import DataForm
from webui.studio import Studio, demo_data

PAGE_ROWS = 200
_AUDIO = (".wav", ".flac", ".ogg", ".mp3")
_LISTS = (".csv", ".tsv", ".txt", ".list")
_EVAL_NAME = re.compile(r"(^|[^a-z])(eval|val|valid|validation|dev|test)([^a-z]|$)")
_COLUMNS = {
    "source": ("List", 110), "line": ("Line", 80), "audio_file": ("Audio file", 190),
    "text": ("Text", 280), "speaker": ("Speaker", 110), "duration_s": ("Seconds", 100),
    "split": ("Split", 80), "status": ("Status", 100), "reason": ("Reason", 240),
    "remedy": ("What to do", 240), "clip_id": ("Clip", 150),
}  # fmt: skip
"""The columns of the ledger that the page shows: their headings and widths."""

_QUIET: dict[str, Any] = {"api_visibility": "private", "concurrency_limit": None}


@dataclass(frozen=True)
class _Fitness:
    """What asks which clips a model can use, and where the answer appears."""

    family: gr.Dropdown
    base: gr.Textbox
    check: gr.Button
    report: gr.HTML


@dataclass(frozen=True)
class _Sources:
    """Where lists and clips come from."""

    files: gr.File
    audio_folder: gr.Textbox
    use_demo: gr.Button


@dataclass(frozen=True)
class _Ledger:
    """What the check found: the report, the rows, the clip that plays."""

    report: gr.HTML
    holder: gr.Column
    only_problems: gr.Checkbox
    page: gr.Number
    download: gr.DownloadButton
    where: gr.Markdown
    table: gr.Dataframe
    player: gr.Audio


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
    notes = "".join(f'<div class="notice">{safe(note)}</div>' for note in manifest.notes)
    lines = "".join(f'<span class="fact">{safe(source)}</span>' for source in sources)
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
        if clip.id == clip_id and clip.audio_path:
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
                sources = _build_sources()
            with gr.Column(min_width=300, scale=2):
                form = DataForm()
                check = gr.Button("Check the data", variant="primary", elem_id="check-data")
        ledger = _build_ledger()
        fitness = _build_fitness()
    shows_report = _wire_report(studio, form, ledger)
    shows_report(check.click)
    _wire_sources(studio, form, sources, shows_report)
    _wire_rows(studio, form, ledger)
    _wire_fitness(studio, form, fitness)
    return form


def _build_sources() -> _Sources:
    return _Sources(
        files=gr.File(
            label="Train CSV, Eval CSV and clips from this browser",
            file_count="multiple",
            file_types=[*_LISTS, *_AUDIO],
            height=150,
            elem_id="upload",
        ),
        audio_folder=gr.Textbox(
            label="Folder of the clips",
            info="Only if you drop a list whose clips already lie on the server.",
            interactive=True,
            max_lines=1,
            elem_id="audio-folder",
        ),
        use_demo=gr.Button("Use the demo clips", size="sm", elem_id="use-demo"),
    )


def _build_fitness() -> _Fitness:
    families = discover("trainer.models", ModelFamily)
    with gr.Accordion("What a model can use of it", open=False, elem_id="fitness"):
        gr.Markdown(
            "Letters the model does not know, clips too long for it, and what a new language "
            "costs. It computes the features a run needs, so the first time takes a while."
        )
        with gr.Row():
            family = gr.Dropdown(
                [(entry.label, name) for name, entry in families.items()],
                value=next(iter(families)),
                label="Model",
                interactive=True,
                elem_id="fitness-family",
            )
            base = gr.Textbox(
                label="Base checkpoint",
                info="The folder the run will start from; empty: none.",
                interactive=True,
                max_lines=1,
                elem_id="fitness-base",
            )
            check = gr.Button("Check for this model", elem_id="fitness-check")
        return _Fitness(family, base, check, gr.HTML(elem_id="fitness-report"))


def _build_ledger() -> _Ledger:
    report_box = gr.HTML(elem_id="data-report")
    with gr.Column(visible=False) as holder:
        with gr.Row():
            only_problems = gr.Checkbox(
                label="Only problems", interactive=True, elem_id="only-problems", min_width=200
            )
            page = gr.Number(
                value=1, label="Page", precision=0, minimum=1, interactive=True, min_width=120
            )
            download = gr.DownloadButton("Download the ledger (CSV)", size="sm")
        where = gr.Markdown()
        with gr.Row():
            with gr.Column(scale=4, min_width=300):
                table = gr.Dataframe(
                    headers=[label for label, _ in _COLUMNS.values()],
                    datatype="str",
                    type="array",
                    interactive=False,
                    wrap=True,
                    max_height=460,
                    column_widths=[f"{width}px" for _, width in _COLUMNS.values()],
                    buttons=[],
                    elem_id="ledger",
                )
            with gr.Column(scale=1, min_width=260):
                player = gr.Audio(
                    label="Click a row to hear it",
                    interactive=False,
                    buttons=["download"],
                    elem_id="clip-player",
                )
    return _Ledger(report_box, holder, only_problems, page, download, where, table, player)


def _wire_report(studio: Studio, form: DataForm, ledger: _Ledger) -> Callable[..., Any]:
    """Return what makes an event show the report of the data in the form."""
    fields: set[Any] = {*form.widgets.values(), ledger.only_problems}

    def show_report(values: Values) -> list[Any]:
        with toasts():
            manifest = studio.read_manifest(form.config(values), fresh=True)
            file = studio.scratch / f"ledger-{uuid.uuid4().hex[:8]}.csv"
            manifest.write_csv(file)
        rows, words = ledger_page(manifest, 1, values[ledger.only_problems])
        return [report(manifest), gr.Column(visible=True), 1, str(file), words, rows, None]

    def connect(event: Callable[..., Any]) -> None:
        event(
            show_report,
            fields,
            [
                ledger.report, ledger.holder, ledger.page, ledger.download, ledger.where,
                ledger.table, ledger.player,
            ],
            **_QUIET,
        )  # fmt: skip

    return connect


def _wire_sources(
    studio: Studio, form: DataForm, sources: _Sources, shows_report: Callable[..., Any]
) -> None:
    lists = [form.widgets["train_csv"], form.widgets["eval_csv"], form.widgets["train_data"]]

    def take_upload(files: list[str] | None, audio_folder: str | None) -> list[str]:
        with toasts():
            data = store_upload(studio, files or [], audio_folder or "")
        return [data.train_csv, data.eval_csv, ""]

    def take_demo() -> list[str]:
        data = demo_data()
        return [data.train_csv, data.eval_csv, ""]

    uploaded = sources.files.upload(
        take_upload, [sources.files, sources.audio_folder], lists, **_QUIET
    )
    shows_report(uploaded.success)
    shows_report(sources.use_demo.click(take_demo, None, lists, **_QUIET).success)


def _wire_rows(studio: Studio, form: DataForm, ledger: _Ledger) -> None:
    fields: set[Any] = set(form.widgets.values())
    listing: set[Any] = {ledger.only_problems, ledger.page}

    def show_rows(values: Values) -> tuple[list[list[str]], str]:
        with toasts():
            manifest = studio.read_manifest(form.config(values))
        return ledger_page(manifest, int(values[ledger.page] or 1), values[ledger.only_problems])

    def play(values: Values, event: gr.SelectData) -> tuple[int, Any] | None:
        with toasts():
            manifest = studio.read_manifest(form.config(values))
        return clip_audio(manifest, str(event.row_value[-1]))

    for widget in (ledger.only_problems, ledger.page):
        widget.input(show_rows, fields | listing, [ledger.table, ledger.where], **_QUIET)
    ledger.table.select(play, fields, ledger.player, **_QUIET)


def _wire_fitness(studio: Studio, form: DataForm, fitness: _Fitness) -> None:
    fields: set[Any] = {*form.widgets.values(), fitness.family, fitness.base}
    families = discover("trainer.models", ModelFamily)

    def judge(values: Values) -> str:
        with toasts():
            name = str(values[fitness.family])
            if name not in families:
                raise DataError(f"'{name}' is no model. Choose one of {', '.join(families)}.")
            base = str(values[fitness.base] or "").strip()
            base = studio.absolute(base) if base else ""
            found = judge_for(name, base, studio.absolute_data(form.config(values)))
        return describe_fitness(found, families[name].label)

    fitness.check.click(judge, fields, fitness.report, api_visibility="private")


def _names(names: list[str], most: int = 8) -> str:
    shown = ", ".join(safe(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _cell(name: str, value: Any) -> str:
    if name == "duration_s":
        return "" if value != value else f"{value:.2f}"
    return str(value)


def _histogram(edges_s: list[float], counts: list[int]) -> str:
    most = max(counts, default=0)
    if not most:
        return ""
    last = max(index for index, count in enumerate(counts) if count) + 1
    bars = []
    for index, (edge, count) in enumerate(zip(edges_s[:last], counts[:last], strict=True)):
        until = f"-{edges_s[index + 1]:g}" if index + 1 < len(edges_s) else "+"
        height = round(60 * count / most)
        bars.append(
            f'<div class="bar" title="{count} clips"><small>{count or ""}</small>'
            f'<i style="height:{height}px"></i><span>{edge:g}{until}</span></div>'
        )
    return f'<div class="histogram"><b>Clips by seconds</b><div>{"".join(bars)}</div></div>'
