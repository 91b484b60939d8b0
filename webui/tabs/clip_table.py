"""Build the part of the Data tab that shows the results of the check and edits texts."""

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import soundfile
from gradio.blocks import Block
from gradio.events import Dependency

from trainer.core.errors import ConfigError, DataError, TimbreError
from trainer.core.run_config import DataConfig
from trainer.data.lists.audio_paths import AudioFinder, Missing
from trainer.data.lists.findings import Finding, find_outliers
from trainer.data.lists.manifest import Manifest
from trainer.data.lists.preview import ListPreview, preview_list
from webui.actions import as_shown, event_detail, toasts
from webui.forms.event_options import READING, private
from webui.forms.field_updates import Answer, asking, fill_fields
from webui.forms.form import as_text, read_values
from webui.forms.form_validation import FieldValidator, about_lists, field_errors
from webui.forms.run_form import DataForm
from webui.scripts import mount
from webui.studio import Studio
from webui.views.clip_table import (
    COLUMNS,
    TableView,
    describe_columns,
    findings_table,
    label_of,
    ledger_page,
    limit_for,
    places_of,
    report,
)
from webui.views.quality_cache import QualityCache
from webui.views.text_edits import TextEdits, save_edits

_PROGRESS = gr.Progress()
_ROLES = {
    "audio": "Audio file", "text": "Text", "speaker": "Speaker", "language": "Language",
}  # fmt: skip
_MAX_PLAYED_S = 60  # A row that is not a clip may point at hours of audio; play only its start.
Values = Mapping[Block, Any]
"""What Gradio passes to a handler whose inputs are a set: the value of each component."""
CHECK = "timbre.checkData();"
"""The line of JavaScript that runs the check."""
_TELL_PAGE = "(draft) => { timbre.setDraft(draft); }"


@dataclass(frozen=True)
class Editor:
    """The player, the text field and the unsaved edits."""

    player: gr.Audio
    text: gr.Textbox
    keep: gr.Button
    leave_out: gr.Button
    place: gr.Textbox
    draft: gr.Textbox
    box: gr.Group
    words: gr.Markdown
    folder: gr.Textbox
    save: gr.Button
    forget: gr.Button


@dataclass(frozen=True)
class Columns:
    """A preview of the first list, and the role of each column."""

    shown: gr.HTML
    roles: dict[str, gr.Dropdown]
    use: gr.Button
    recognise: gr.Button


@dataclass(frozen=True)
class LedgerPanel:
    """The widgets for the results of the check: report, issues, rows, editor and columns."""

    report: gr.HTML
    findings: gr.HTML
    holder: gr.Column
    only_problems: gr.Checkbox
    page: gr.Number
    kind: gr.Textbox
    download: gr.DownloadButton
    where: gr.Markdown
    table: gr.Dataframe
    editor: Editor
    columns: Columns


def clip_audio(manifest: Manifest, clip_id: str) -> tuple[int, np.ndarray] | None:
    """Return a clip of the manifest as (sample rate, int16 (T_wav,) or (T_wav, channels))."""
    for clip in manifest.clips:
        if clip.id == clip_id and clip.audio_path:
            # The file may have been moved since the list was read.
            with suppress(soundfile.LibsndfileError, OSError, RuntimeError):
                wave, sample_rate = soundfile.read(clip.audio_path, dtype="int16")
                return sample_rate, wave
    return None


def problem_audio(manifest: Manifest, place: str) -> tuple[int, np.ndarray] | None:
    """Return the first minute of audio of a problem row; `place` is "list\\nline"."""
    name, _, line = place.partition("\n")
    for problem in manifest.problems:
        if (problem.source, str(problem.line)) == (name, line):
            folder = Path(next(one.path for one in manifest.sources if one.name == name)).parent
            found = AudioFinder(folder).find(problem.audio_file)
            if isinstance(found, Missing):
                return None
            with suppress(soundfile.LibsndfileError, OSError, RuntimeError):
                most = _MAX_PLAYED_S * soundfile.info(found).samplerate
                wave, sample_rate = soundfile.read(found, frames=most, dtype="int16")
                return sample_rate, wave
    return None


def build_ledger() -> LedgerPanel:
    """Lay the part out; it is hidden until the first check."""
    report_box = gr.HTML(elem_id="data-report")
    with gr.Column(visible=False) as holder:
        findings = gr.HTML(
            apply_default_css=False, js_on_load=mount("mountFindings"), elem_id="findings"
        )
        columns = _build_columns()
        with gr.Row():
            only_problems = gr.Checkbox(
                label="Only rows with problems",
                interactive=True,
                elem_id="only-problems",
                min_width=200,
            )
            page = gr.Number(
                value=1, label="Page", precision=0, minimum=1, interactive=True, min_width=120
            )
            download = gr.DownloadButton("Download ledger (CSV)", size="sm")
        kind = gr.Textbox(visible=False)
        where = gr.Markdown(elem_id="ledger-where")
        with gr.Row():
            with gr.Column(scale=4, min_width=300):
                table = gr.Dataframe(
                    headers=[label for label, _ in COLUMNS.values()],
                    datatype="str",
                    type="array",
                    interactive=False,
                    wrap=True,
                    max_height=460,
                    column_widths=[f"{width}px" for _, width in COLUMNS.values()],
                    buttons=[],
                    elem_id="ledger",
                )
            with gr.Column(scale=2, min_width=300):
                editor = _build_editor()
    return LedgerPanel(
        report_box, findings, holder, only_problems, page, kind, download, where, table, editor,
        columns,
    )  # fmt: skip


def _build_editor() -> Editor:
    player = gr.Audio(
        label="Select a row to play it",
        interactive=False,
        buttons=["download"],
        elem_id="clip-player",
    )
    text = gr.Textbox(
        label="Clip text",
        info="Write what is said. Edits are saved to a new list; yours is not changed.",
        lines=3,
        interactive=False,
        elem_id="clip-text",
    )
    with gr.Row():
        keep = gr.Button("Apply text", elem_id="keep-text", size="sm", interactive=False)
        leave_out = gr.Button("Exclude clip", elem_id="leave-out", size="sm", interactive=False)
    with gr.Group(visible=False, elem_id="draft-box") as box:
        words = gr.Markdown(elem_id="draft-words", container=True)
        folder = gr.Textbox(
            label="Folder for the new CSV",
            info="Leave empty to save next to the list.",
            interactive=True,
            max_lines=1,
            elem_id="draft-folder",
        )
        with gr.Row():
            save = gr.Button("Save as new CSV", variant="primary", elem_id="save-draft")
            forget = gr.Button("Discard changes", elem_id="forget-draft")
    place, draft = gr.Textbox(visible=False), gr.Textbox(visible=False)
    return Editor(player, text, keep, leave_out, place, draft, box, words, folder, save, forget)


def _build_columns() -> Columns:
    with gr.Accordion("Column mapping", open=False, elem_id="columns"):
        shown = gr.HTML(apply_default_css=False, elem_id="columns-shown")
        with gr.Row():
            roles = {
                role: gr.Dropdown(
                    [], label=label, interactive=True, min_width=150, elem_id=f"column-{role}"
                )
                for role, label in _ROLES.items()
            }
        with gr.Row():
            use = gr.Button("Use this mapping", size="sm", elem_id="use-columns")
            recognise = gr.Button("Detect automatically", size="sm")
    return Columns(shown, roles, use, recognise)


class LedgerWiring:
    """Connects the events of the check, the rows, the edits and the columns."""

    def __init__(
        self, studio: Studio, form: DataForm, ledger: LedgerPanel, watch: FieldValidator
    ) -> None:
        self.studio, self.form, self.ledger, self.qualities = studio, form, ledger, QualityCache()
        self.watch = watch
        listing = (ledger.only_problems, ledger.page, ledger.kind, ledger.editor.draft)
        self.fields: set[Any] = {watch.form, *listing}
        self._wire_rows()
        self._wire_edits()
        self._wire_remedies()
        self._wire_columns()

    def check_on(self, button: gr.Button) -> None:
        """Run the check when a button is pressed; analyze the audio of the clips after it.

        The page's script presses it too, when other lists or limits were filled in.
        """
        ledger = self.ledger
        columns = [ledger.columns.shown, *ledger.columns.roles.values()]
        first = [
            ledger.report, ledger.findings, ledger.holder, ledger.page, ledger.kind,
            ledger.download, ledger.where, ledger.table, *self._editor_outputs, *columns,
        ]  # fmt: skip
        # A press during a check is answered after it, as the fields may have changed.
        checking = private(js=asking("check"), trigger_mode="always_last")
        checked = button.click(self.check, self.fields, first, **checking)
        self._after_draft(checked)
        self.watch.show_after(
            checked.failure(self.refuse, self.fields, self.watch.marks, **READING)
        )
        checked.success(
            self.listen,
            self.fields,
            [ledger.findings, ledger.table, ledger.where],
            show_progress_on=ledger.findings,
            **READING,
        )

    def check(self, values: Values, bar: gr.Progress = _PROGRESS) -> list[object]:
        """Read the lists again and show the report, with a progress bar."""

        def show(phase: str, done: int, total: int) -> None:
            bar((done, total), desc=phase, unit="")

        with toasts():
            data = self._data(values)
            manifest = self.studio.read_manifest(data, fresh=True, progress=show)
            file = self.studio.scratch / f"ledger-{uuid.uuid4().hex[:8]}.csv"
            manifest.write_csv(file)
            columns = self._show_columns(manifest, values)
        view = TableView(1, bool(values[self.ledger.only_problems]), "", self._draft(values))
        rows, words = ledger_page(manifest, view, self._findings(manifest))
        seen = findings_table(manifest, self._findings(manifest), "")
        return [
            report(manifest), seen, gr.Column(visible=True), 1, "", str(file), words, rows,
            *_no_clip(view.draft), *columns,
        ]  # fmt: skip

    def refuse(self, values: Values) -> str:
        """Return the marks for the fields that explain why the lists cannot be read."""
        problems: list[str] = []
        try:
            data = self._data(values)
        except ConfigError as error:
            problems = error.problems
        else:
            try:
                self.studio.read_manifest(data)
            except TimbreError as error:
                problems = about_lists(error, data)
        return field_errors(problems, dict.fromkeys(self.form.ids, "data"), pressed=True)

    def listen(self, values: Values) -> tuple[str, list[list[str]], str]:
        """Analyze the audio of the clips and show the findings."""
        with toasts():
            manifest = self._manifest(values)
        heard = self.qualities.measure(manifest.clips)
        rows, words = self.show_rows(values)
        return findings_table(manifest, self._findings(manifest), heard), rows, words

    def show_rows(self, values: Values) -> tuple[list[list[str]], str]:
        """Return one page of rows, and a sentence that describes it."""
        ledger = self.ledger
        view = TableView(
            int(values[ledger.page] or 1),
            bool(values[ledger.only_problems]),
            str(values[ledger.kind] or ""),
            self._draft(values),
        )
        with toasts():
            manifest = self._manifest(values)
        return ledger_page(manifest, view, self._findings(manifest))

    def _wire_rows(self) -> None:
        ledger, editor = self.ledger, self.ledger.editor

        def show_all(values: Values) -> tuple[list[list[str]], str, str]:
            return (*self.show_rows({**values, ledger.kind: ""}), "")

        def open_clip(values: Values, event: gr.SelectData) -> list[object]:
            row = [str(cell) for cell in event.row_value]
            cells = dict(zip(COLUMNS, row, strict=False))
            with toasts():
                manifest = self._manifest(values)
            label = f"Text of line {cells['line']} in {cells['source']}"
            buttons = [gr.Button(interactive=True), gr.Button(interactive=True)]
            box = gr.Textbox(cells["text"], label=label, interactive=True)
            place = f"{cells['source']}\n{cells['line']}"
            audio = clip_audio(manifest, cells["clip_id"]) or problem_audio(manifest, place)
            return [audio, box, place, *buttons]

        ledger.page.input(self.show_rows, self.fields, [ledger.table, ledger.where], **READING)
        ledger.only_problems.input(
            show_all, self.fields, [ledger.table, ledger.where, ledger.kind], **READING
        )
        ledger.table.select(
            open_clip,
            self.fields,
            [editor.player, editor.text, editor.place, editor.keep, editor.leave_out],
            **READING,
        )

    def _wire_edits(self) -> None:
        editor = self.ledger.editor
        fields: set[Any] = {*self.fields, editor.text, editor.place}
        saving: set[Any] = {*self.fields, editor.folder}

        def keep(values: Values) -> list[object]:
            with toasts():
                draft = self._draft(values).with_text(_place(values, editor), values[editor.text])
            return self._show_draft(values, draft)

        def leave_out(values: Values) -> list[object]:
            with toasts():
                draft = self._draft(values).without(frozenset([_place(values, editor)]))
            return self._show_draft(values, draft)

        def forget(values: Values) -> list[object]:
            return self._show_draft(
                values, replace(self._draft(values), texts={}, left_out=frozenset())
            )

        def save(values: Values) -> Answer:
            with toasts():
                data = self.studio.absolute_data(self._data(values))
                draft, folder = self._draft(values), str(values[editor.folder] or "")
                data, told = save_edits(self.studio, self._manifest(values), draft, data, folder)
            gr.Info(as_shown(told), duration=10)
            lists = self.form.show_lists(data)
            return {**lists, editor.draft: "", editor.box: gr.Group(visible=False)}

        for button, handler in ((editor.keep, keep), (editor.leave_out, leave_out)):
            self._after_draft(button.click(handler, fields, self._draft_outputs, **READING))
        self._after_draft(editor.forget.click(forget, fields, self._draft_outputs, **READING))
        further = [editor.draft, editor.box]
        saved = fill_fields(
            editor.save.click, save, saving, name="save", further=further, then=CHECK
        )
        self._after_draft(saved)

    def _wire_remedies(self) -> None:
        ledger = self.ledger
        limits = [self.form.fields[name].id for name in ("min_duration_s", "max_duration_s")]

        def show(values: Values, event: gr.EventData) -> list[object]:
            kind = event_detail(event, "kind")
            rows, words = self.show_rows(
                {**values, ledger.kind: kind, ledger.page: 1, ledger.only_problems: False}
            )
            return [rows, words, kind, 1, False]

        def leave_out(values: Values, event: gr.EventData) -> list[object]:
            with toasts():
                manifest, kind = self._manifest(values), event_detail(event, "kind")
                places = places_of(manifest, self._findings(manifest), kind)
                if not places:
                    raise DataError(f"No such rows are left ({label_of(kind)}).")
            return self._show_draft(values, self._draft(values).without(places))

        def change_limit(values: Values, event: gr.EventData) -> Answer:
            with toasts():
                kind = event_detail(event, "kind")
                limit = limit_for(self._manifest(values), kind)
                if limit is None:
                    raise DataError("No row is too long or too short now.")
            gr.Info(f"The limit is now {limit:g} s.", duration=4)
            return {limits[0 if kind == "too_short" else 1]: as_text(limit)}

        rows = [ledger.table, ledger.where, ledger.kind, ledger.page, ledger.only_problems]
        ledger.findings.click(show, self.fields, rows, **READING)
        left_out = ledger.findings.delete(leave_out, self.fields, self._draft_outputs, **READING)
        self._after_draft(left_out)
        fill_fields(ledger.findings.apply, change_limit, self.fields, name="limit", then=CHECK)

    def _wire_columns(self) -> None:
        columns, told = self.ledger.columns, self.form.fields["columns"].id

        def use(*chosen: str | None) -> Answer:
            pairs = zip(_ROLES, chosen, strict=True)
            return {told: ", ".join(f"{role}={number}" for role, number in pairs if number)}

        roles = list(columns.roles.values())
        fill_fields(columns.use.click, use, roles, name="columns", then=CHECK)
        forget = f"() => {{ timbre.setField({json.dumps(told)}, ''); {CHECK} }}"
        columns.recognise.click(None, None, None, **private(js=forget))

    @property
    def _editor_outputs(self) -> list[Block]:
        editor = self.ledger.editor
        return [
            editor.player, editor.text, editor.place, editor.keep, editor.leave_out, editor.draft,
            editor.box,
        ]  # fmt: skip

    @property
    def _draft_outputs(self) -> list[Block]:
        ledger, editor = self.ledger, self.ledger.editor
        return [editor.draft, editor.box, editor.words, ledger.table, ledger.where]

    def _after_draft(self, event: Dependency) -> None:
        """Tell the page's script about unsaved edits, so that it can warn before they are lost."""
        draft = self.ledger.editor.draft
        event.success(None, draft, None, **private(js=_TELL_PAGE))

    def _show_draft(self, values: Values, draft: TextEdits) -> list[object]:
        text = draft.as_text()
        rows, words = self.show_rows({**values, self.ledger.editor.draft: text})
        return [text, gr.Group(visible=bool(draft)), draft.describe(), rows, words]

    def _draft(self, values: Values) -> TextEdits:
        with toasts():
            return TextEdits.read(values[self.ledger.editor.draft], self._manifest(values))

    def _manifest(self, values: Values) -> Manifest:
        return self.studio.read_manifest(self._data(values))

    def _data(self, values: Values) -> DataConfig:
        return self.form.config(read_values(values[self.watch.form]))

    def _findings(self, manifest: Manifest) -> Sequence[Finding]:
        return find_outliers(manifest.clips, self.qualities.cached(manifest.clips))

    def _show_columns(self, manifest: Manifest, values: Values) -> list[object]:
        """Return updates of the column preview and of the choices for each role."""
        data, source = self._data(values), manifest.sources[0]
        list_preview = preview_list(Path(source.path), data.language, data.columns)
        return [
            describe_columns(list_preview, source.name),
            *(_choices(list_preview, role) for role in _ROLES),
        ]


def _no_clip(draft: TextEdits) -> list[object]:
    """Return updates that clear the editor; edits of other lists are already gone from `draft`."""
    text = gr.Textbox("", label="Clip text", interactive=False)
    buttons = [gr.Button(interactive=False), gr.Button(interactive=False)]
    return [None, text, "", *buttons, draft.as_text(), gr.Group(visible=bool(draft))]


def _choices(list_preview: ListPreview | None, role: str) -> gr.Dropdown:
    headings = list_preview.headings if list_preview is not None else ()
    choices = [(f"{number}. {name}", str(number)) for number, name in enumerate(headings, start=1)]
    chosen = list_preview.roles.get(role) if list_preview is not None else None
    none = [] if role in ("audio", "text") else [("none", "")]
    return gr.Dropdown(none + choices, value="" if chosen is None else str(chosen + 1))


def _place(values: Values, editor: Editor) -> tuple[str, int]:
    source, _, line = str(values[editor.place] or "").partition("\n")
    if not line.isdigit():
        raise DataError("No clip is selected. Click a row first.")
    return source, int(line)
