"""Build the Start tab: train a demo voice, find the other tabs, and see this computer's facts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

from trainer.core.device import Device, free_disk_gib, list_devices
from webui.actions import answer_buttons, toasts
from webui.forms.event_options import PRESS, READING
from webui.scripts import mount
from webui.studio import Studio, demo_config

_DEMO_NAME = "demo-voice"
_CARDS = (
    ("data", "1. Add your recordings", "Upload a CSV with audio files and their texts, or cut "
     "long recordings. Every row that can't be used is listed with the reason."),
    ("train", "2. Set up training", "Start from a preset, and open more options if you need "
     "them. Optimizations save time and memory."),
    ("listen", "3. Listen and export", "Speak any sentence with any checkpoint, compare it with "
     "your recordings, and export the voice."),
)  # fmt: skip


@dataclass(frozen=True)
class StartTab:
    """The widgets that open other tabs."""

    demo: gr.Button
    cards: dict[str, gr.Button]
    recent: gr.HTML


def start_demo(studio: Studio) -> str:
    """Start the demo run, unless one is already training, and return its name."""
    for run in studio.run_list.active():
        if run["name"].startswith(_DEMO_NAME):
            return run["name"]
    return studio.start(_DEMO_NAME, demo_config()).name


def machine_facts(studio: Studio, devices: list[Device]) -> str:
    """Describe this computer as a Markdown list."""
    lines = []
    for device in devices:
        bf16 = "bf16" if device.has_bf16 else "no bf16: use fp16 mixed precision"
        lines.append(f"- **{device.name}**: {device.memory_gib:.0f} GB memory, {bf16}")
    if devices[0].kind == "cpu":
        lines.append("- No GPU found: the small model trains well on the CPU; large ones need one.")
    free = free_disk_gib(studio.library.folder)
    warning = " - *nearly full: free some space before a long run*" if free < 5 else ""
    lines.append(f"- {free:.0f} GB free on the runs disk{warning}")
    lines.append(f"- torch {version('torch')}, Gradio {version('gradio')}")
    return "\n".join(lines)


def build(studio: Studio) -> StartTab:
    """Lay the tab out."""
    with gr.Tab("Start", id="start", elem_id="tab-start"):
        with gr.Column(elem_classes="narrow"):
            gr.Markdown("## Teach a voice to speak\nNo setup needed: the demo clips are included.")
            demo = gr.Button(
                "Train a demo voice (about a minute)",
                variant="primary",
                size="lg",
                elem_id="demo-button",
            )
        cards = {}
        with gr.Row(elem_classes="cards", equal_height=True):
            for tab, title, text in _CARDS:
                with gr.Column(min_width=240, elem_classes="card"):
                    gr.Markdown(f"### {title}\n{text}")
                    cards[tab] = gr.Button(f"Open {tab.title()}", size="sm")
        with gr.Row():
            with gr.Column(scale=3, min_width=300):
                gr.Markdown("### Continue")
                recent = gr.HTML(
                    apply_default_css=False, js_on_load=mount("mountRecent"), elem_id="recent"
                )
            with gr.Column(scale=2, min_width=300):
                gr.Markdown("### This computer\n" + machine_facts(studio, list_devices()))
    return StartTab(demo, cards, recent)


def wire(tab: StartTab, studio: Studio, shown: gr.Textbox, tabs: gr.Tabs) -> None:
    """Connect the buttons."""

    def press_demo() -> tuple[str, gr.Tabs]:
        with toasts():
            return start_demo(studio), gr.Tabs(selected="live")

    show_run(tab.demo, press_demo, shown, tabs)
    for name, button in tab.cards.items():
        button.click(
            None, None, tabs, js=f"() => timbre.openTab('{name}')", api_visibility="private"
        )
    tab.recent.click(answer_buttons(studio), **PRESS)


def show_run(
    button: gr.Button,
    start: Callable[..., object],
    shown: gr.Textbox,
    tabs: gr.Tabs,
    inputs: Sequence[Component] = (),
    further: Sequence[Component] = (),
) -> Dependency:
    """Start a run on a click, then show it on the Live tab; return that event."""
    return button.click(
        start,
        list(inputs),
        [shown, tabs, *further],
        **READING,
    ).success(None, shown, None, js="(name) => timbre.show(name)", api_visibility="private")
