"""Runs: every run in one table, compared, resumed and exported."""

import shutil
from dataclasses import dataclass
from typing import Any

import gradio as gr

from webui.actions import answer_buttons, event_detail, toasts
from webui.api import export_run
from webui.scripts import mount
from webui.studio import Studio


@dataclass(frozen=True)
class RunsTab:
    """The table and where an exported voice appears."""

    table: gr.HTML
    where: gr.Markdown
    files: gr.File


def build(studio: Studio) -> RunsTab:
    """Lay the tab out."""
    with gr.Tab("Runs", id="runs", elem_id="tab-runs"):
        where = gr.Markdown(elem_id="export-where")
        files = gr.File(label="Exported voice", visible=False, elem_id="exported")
        table = gr.HTML(apply_default_css=False, js_on_load=mount("mountRuns"), elem_id="runs")
    return RunsTab(table, where, files)


def wire(tab: RunsTab, studio: Studio) -> None:
    """Connect the buttons of the table."""

    def press_export(event: gr.EventData) -> tuple[Any, Any]:
        if event_detail(event, "action") != "export":
            return gr.skip(), gr.skip()
        with toasts():
            folder = export_run(studio, event_detail(event, "run"), "best")
        name = f"{folder.parent.parent.name}-{folder.name}"
        archive = shutil.make_archive(str(studio.scratch / name), "zip", folder)
        return f"Exported to `{folder}`", gr.File(archive, visible=True)

    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    tab.table.click(answer_buttons(studio), concurrency_limit=None, **quiet)
    tab.table.click(
        press_export,
        None,
        [tab.where, tab.files],
        concurrency_limit=1,
        concurrency_id="speaking",
        **quiet,
    )
