"""Assemble the page: header, status bar and tabs."""

from html import escape

import gradio as gr

from trainer.core.device import list_devices
from webui.api import add_endpoints
from webui.forms.form_validation import FieldValidator
from webui.scripts import build_script_tags, mount, queued
from webui.studio import Studio
from webui.tabs import data, listen, live, race, runs, start, train

_LANGUAGES = {"en": "English", "ko": "한국어", "am": "አማርኛ", "fa": "فارسی"}


def build_page(studio: Studio) -> gr.Blocks:
    """Return the complete page, not launched yet."""
    with gr.Blocks(title="Timbre", analytics_enabled=False, delete_cache=(3600, 86400)) as page:
        gr.HTML(_header(), js_on_load=mount("mountHeader"), elem_id="header")
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
    return '<link rel="stylesheet" href="studio/page/page.css">' + build_script_tags()


def _header() -> str:
    machine = list_devices()[0]
    facts = f"{machine.name} - {machine.memory_gib:.0f} GB"
    choices = "".join(
        f'<option value="{code}" lang="{code}">{name}</option>' for code, name in _LANGUAGES.items()
    )
    return (
        '<div class="brand"><span class="logo" aria-hidden="true"></span><h1>Timbre</h1>'
        f'<span class="machine" translate="no">{escape(facts)}</span>'
        f'<select id="language" aria-label="Language" translate="no">{choices}</select>'
        '<button type="button" id="show-keys" aria-label="Keyboard shortcuts">?</button>'
        '<button type="button" class="theme-switch" '
        'aria-label="Switch between light and dark">Light / dark</button></div>'
    )
