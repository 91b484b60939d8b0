"""Assemble the page: header, status bar and tabs."""

import gradio as gr
from gradio.data_classes import BlocksConfigDict

from trainer.core.device import list_devices
from webui.api import add_endpoints
from webui.forms.form_validation import FieldValidator
from webui.scripts import describe_scripts, mount, queued
from webui.studio import Studio
from webui.tabs import data, listen, live, race, runs, start, train
from webui.views.markup import render

_FOR_CLIENTS = ("api_info", "api_info_as_input", "api_info_as_output", "example_inputs")
_LANGUAGES = {"en": "English", "ko": "한국어", "am": "አማርኛ", "fa": "فارسی"}


class Page(gr.Blocks):
    """Blocks whose configuration describes for API clients only what they may call.

    A browser loads the configuration first and never uses these descriptions; with those of every
    component they are a seventh of it.
    """

    def get_config_file(self) -> BlocksConfigDict:
        """Return the configuration that browsers and API clients load."""
        config = super().get_config_file()
        called = {
            number
            for handler in config.get("dependencies", [])
            if handler["api_visibility"] != "private"
            for number in (*handler["inputs"], *handler["outputs"])
        }
        for component in config.get("components", []):
            if component["id"] not in called:
                for key in _FOR_CLIENTS:
                    component.pop(key, None)
        return config


def build_page(studio: Studio) -> gr.Blocks:
    """Return the complete page, not launched yet."""
    with Page(title="Timbre", analytics_enabled=False, delete_cache=(3600, 86400)) as page:
        header = render("header", machine=list_devices()[0], languages=_LANGUAGES)
        gr.HTML(header, js_on_load=mount("mountHeader"), elem_id="header")
        gr.HTML(apply_default_css=False, js_on_load=mount("mountStatusBar"), elem_id="strip")
        shown = gr.Textbox(visible=False, elem_id="shown-run")
        watch = FieldValidator()
        with gr.Tabs(selected="start", elem_id="tabs") as tabs:
            start_tab = start.build(studio)
            data_form, report = data.build(studio, watch)
            train_tab = train.build(watch)
            live_tab = live.build(studio)
            listen.build(studio, shown)
            runs_tab = runs.build(studio)
            race_tab = race.build(watch)
        start.wire(start_tab, studio, shown, tabs)
        reader = train.SettingsReader(train_tab.form, data_form, studio)
        train.wire(train_tab, reader, report, shown, tabs)
        live.wire(live_tab, studio)
        runs.wire(runs_tab, studio)
        train.wire_copy(train_tab, reader, runs_tab.table, tabs)
        train.wire_race(train_tab, reader, race_tab, tabs)
        page.load(None, None, None, js=f"() => {{ {queued('openLinkedTab')} }}")
        add_endpoints(studio)
    return page


def build_head() -> str:
    """Return the HTML head: our style sheet and scripts, all served by our own routes."""
    return render("head", scripts=describe_scripts())
