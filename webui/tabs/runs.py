"""Build the Runs tab: the queue, the run table with comparison and export, and the trash."""

import shutil
from dataclasses import dataclass

import gradio as gr

from webui.actions import answer_buttons, event_detail, toasts
from webui.api import export_run
from webui.forms.event_options import PRESS, SPEAKING
from webui.scripts import mount
from webui.studio import Studio


@dataclass(frozen=True)
class RunsTab:
    """The run table and the widgets that show an exported voice."""

    table: gr.HTML
    where: gr.Markdown
    files: gr.File


def build(studio: Studio) -> RunsTab:
    """Lay the tab out."""
    with gr.Tab("Runs", id="runs", elem_id="tab-runs"):
        where = gr.Markdown(elem_classes="where")
        files = gr.File(label="Exported voice", visible=False, elem_id="exported")
        table = gr.HTML(apply_default_css=False, js_on_load=mount("mountRuns"), elem_id="runs")
    return RunsTab(table, where, files)


def export_files(
    studio: Studio, run: str, checkpoint: str, *, bf16: bool = False
) -> tuple[str, gr.File]:
    """Export a voice; return a message with its folder, and an update that offers it as a ZIP."""
    gr.Info("Exporting the voice. The file will appear on this tab.", duration=4)
    with toasts():
        folder = export_run(studio, run, checkpoint, bf16=bf16)
    name = f"{folder.parent.parent.name}-{folder.name}"
    archive = shutil.make_archive(str(studio.scratch / name), "zip", folder)
    return f"Exported to `{folder}`", gr.File(archive, visible=True)


def wire(tab: RunsTab, studio: Studio) -> None:
    """Connect the buttons of the table; the Train tab handles copying settings to its form."""

    def hand_over(event: gr.EventData) -> tuple[str, gr.File]:
        bf16 = event_detail(event, "bf16") == "true"
        return export_files(studio, event_detail(event, "run"), "best", bf16=bf16)

    tab.table.click(answer_buttons(studio), **PRESS)
    tab.table.download(
        hand_over,
        None,
        [tab.where, tab.files],
        **SPEAKING,
    )
