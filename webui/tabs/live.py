"""Build the Live tab: one panel, drawn in the browser; its buttons trigger Gradio events."""

import gradio as gr

from webui.actions import answer_buttons
from webui.forms.event_options import PRESS
from webui.scripts import mount
from webui.studio import Studio


def build(studio: Studio) -> gr.HTML:
    """Lay the tab out."""
    with gr.Tab("Live", id="live", elem_id="tab-live"):
        return gr.HTML(apply_default_css=False, js_on_load=mount("mountLive"), elem_id="live")


def wire(panel: gr.HTML, studio: Studio) -> None:
    """Connect the panel's buttons: stop, save, preview and resume."""
    panel.click(answer_buttons(studio), **PRESS)
