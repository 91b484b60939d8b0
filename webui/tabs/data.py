"""Build the Data tab: upload lists and clips, and check them row by row before training."""

import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from trainer.core.errors import DataError
from trainer.core.registry import discover
from trainer.core.run_config import DataConfig
from trainer.core.specs import ModelFamily
from trainer.data.lists.archives import unpack
from trainer.data.lists.folder import find_dataset
from webui.actions import as_shown, toasts
from webui.forms.event_options import READ_FORM
from webui.forms.field_updates import Answer, fill_fields
from webui.forms.form import read_values
from webui.forms.form_validation import FieldValidator
from webui.forms.run_form import DataForm, show_options
from webui.studio import Studio, demo_data
from webui.tabs import recordings as tapes
from webui.tabs.clip_table import CHECK, LedgerWiring, build_ledger
from webui.views.compatibility_check import describe_fitness, judge_for

_AUDIO = (".wav", ".flac", ".ogg", ".mp3")
_LISTS = (".csv", ".tsv", ".txt", ".list")
_EVAL_NAME = re.compile(r"(^|[^a-z])(eval|val|valid|validation|dev|test)([^a-z]|$)")


@dataclass(frozen=True)
class _Fitness:
    """The widgets that ask which clips a model can use, and the report."""

    family: gr.Dropdown
    base: gr.Textbox
    check: gr.Button
    report: gr.HTML


@dataclass(frozen=True)
class _Sources:
    """The widgets for adding lists and clips."""

    files: gr.File
    audio_folder: gr.Textbox
    use_demo: gr.Button


def store_upload(studio: Studio, files: list[str], audio_folder: str) -> DataConfig:
    """Copy uploaded lists and clips to one folder and return data settings that use them.

    Raises:
        DataError: the files contain no list, or the audio folder does not exist.
    """
    paths = [Path(file) for file in files]
    if any(path.suffix.lower() == ".zip" for path in paths):
        return _store_archive(studio, paths)
    lists = [path for path in paths if path.suffix.lower() in _LISTS]
    if not lists:
        raise DataError(
            "No list found among the files. Expected a CSV, TSV, TXT or .list file that names an "
            "audio file and its text on each line."
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
            raise DataError(f"{source} is not a folder. Enter the folder that contains the clips.")
        (folder / "audio").symlink_to(source, target_is_directory=True)
    evals = [path.name for path in lists if _EVAL_NAME.search(path.stem.lower())]
    trains = [path.name for path in lists if path.name not in evals] or evals
    eval_csv = str(folder / evals[0]) if evals and evals[0] != trains[0] else ""
    return DataConfig(train_csv=str(folder / trains[0]), eval_csv=eval_csv)


def _store_archive(studio: Studio, paths: list[Path]) -> DataConfig:
    """Unpack an uploaded ZIP and return its dataset; warn about files that were skipped."""
    if len(paths) > 1:
        raise DataError(
            f"Got {len(paths)} files including a ZIP. Drop one ZIP with the list and its clips, "
            "or the files without a ZIP."
        )
    unpacked = unpack(paths[0], studio.uploads / uuid.uuid4().hex[:12])
    if unpacked.refused:
        first = next(f"{name}: {why}" for name, why in unpacked.refused.items())
        gr.Warning(as_shown(f"{len(unpacked.refused)} files were not unpacked. The first: {first}"))
    return DataConfig(train_data=str(find_dataset(unpacked.folder)))


def build(studio: Studio, watch: FieldValidator) -> tuple[DataForm, gr.HTML]:
    """Lay the tab out, connect it, and return the form of the data and the report of its check."""
    with gr.Tab("Data", id="data", elem_id="tab-data"):
        gr.Markdown(
            "### Recordings\nUpload a list that names an audio file and its text on each line; "
            "common layouts are detected. Clips can be WAV, FLAC, OGG or MP3. You can also upload "
            "everything as one ZIP."
        )
        with gr.Row():
            with gr.Column(min_width=300):
                sources = _build_sources()
            with gr.Column(min_width=300, scale=2):
                form = DataForm()
                show_options("data", form)
                check = gr.Button("Check data", variant="primary", elem_id="check-data")
        recordings = tapes.build()
        ledger = build_ledger()
        fitness = _build_fitness()
        wiring = LedgerWiring(studio, form, ledger, watch)
        wiring.check_on(check)
        _wire_sources(studio, form, sources, wiring, recordings)
        _wire_fitness(studio, form, fitness, watch)
    return form, ledger.report


def _build_sources() -> _Sources:
    return _Sources(
        files=gr.File(
            label="Upload train CSV, eval CSV and clips",
            file_count="multiple",
            file_types=[*_LISTS, *_AUDIO, ".zip"],
            height=150,
            elem_id="upload",
        ),
        audio_folder=gr.Textbox(
            label="Clips folder",
            info="Only needed if you upload a list whose clips are already on the server.",
            interactive=True,
            max_lines=1,
            elem_id="audio-folder",
        ),
        use_demo=gr.Button("Use demo clips", size="sm", elem_id="use-demo"),
    )


def _build_fitness() -> _Fitness:
    families = discover("trainer.models", ModelFamily)
    with gr.Accordion("Model compatibility", open=False, elem_id="fitness"):
        gr.Markdown(
            "Find letters the model doesn't know, clips that are too long for it, and the tokens "
            "that a new language adds. The check computes the features that a run needs, so the "
            "first time takes a while."
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
                info="The folder that the run will start from. Leave empty for none.",
                interactive=True,
                max_lines=1,
                elem_id="fitness-base",
            )
            check = gr.Button("Check compatibility", elem_id="fitness-check")
        return _Fitness(
            family, base, check, gr.HTML(apply_default_css=False, elem_id="fitness-report")
        )


def _wire_sources(
    studio: Studio, form: DataForm, sources: _Sources, wiring: LedgerWiring,
    recordings: tapes.RecordingsPart,
) -> None:  # fmt: skip
    draft = wiring.ledger.editor
    rest = [draft.draft, draft.box]

    def show(data: DataConfig) -> Answer:
        return {**form.show_lists(data), draft.draft: "", draft.box: gr.Group(visible=False)}

    def take_upload(files: list[str] | None, audio_folder: str | None) -> Answer:
        with toasts():
            data = store_upload(studio, files or [], audio_folder or "")
        return show(data)

    def take_demo() -> Answer:
        return show(demo_data())

    def take_clips() -> Answer:
        return show(DataConfig(train_csv=tapes.list_of_clips(studio)))

    tapes.wire(recordings, studio, form, wiring.watch)
    given = [sources.files, sources.audio_folder]
    for name, listen, take, inputs in (
        ("upload", sources.files.upload, take_upload, given),
        ("clips", recordings.panel.apply, take_clips, None),
        ("demo", sources.use_demo.click, take_demo, None),
    ):
        fill_fields(listen, take, inputs, name=name, further=rest, then=CHECK)


def _wire_fitness(studio: Studio, form: DataForm, fitness: _Fitness, watch: FieldValidator) -> None:
    families = discover("trainer.models", ModelFamily)

    def judge(text: str, name: str, base: str | None) -> str:
        with toasts():
            if str(name) not in families:
                raise DataError(f"Unknown model '{name}'. Choose one of {', '.join(families)}.")
            folder = studio.absolute(base) if base and base.strip() else ""
            data = studio.absolute_data(form.config(read_values(text)))
            found = judge_for(name, folder, data)
        return describe_fitness(found, families[name].label)

    asked = [watch.form, fitness.family, fitness.base]
    fitness.check.click(judge, asked, fitness.report, js=READ_FORM, api_visibility="private")
