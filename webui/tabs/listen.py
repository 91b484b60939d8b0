"""Build the Listen tab: speak sentences with any checkpoint and compare them with recordings."""

from dataclasses import dataclass

import gradio as gr
import numpy as np
import soundfile

from trainer.core.errors import DataError, TimbreError
from trainer.runs.run import Run
from webui.actions import event_detail, toasts
from webui.api import speak_with
from webui.forms.event_options import PRESS, PRIVATE, SPEAKING, quiet
from webui.jobs.listening_test import make_takes, read_clips, vote
from webui.scripts import mount, queued
from webui.studio import Studio
from webui.tabs.runs import export_files

_MOST_CLIPS = 50


@dataclass(frozen=True)
class ListenTab:
    """The widgets of the tab."""

    empty: gr.Markdown
    run: gr.Dropdown
    checkpoint: gr.Dropdown
    speaker: gr.Dropdown
    clip: gr.Dropdown
    text: gr.Textbox
    speak_now: gr.Button
    speak: gr.Button
    export: gr.Button
    where: gr.Markdown
    files: gr.File
    spoken: gr.Audio
    original: gr.Audio
    listening_test: gr.HTML


def original_audio(run: Run, clip_id: str) -> tuple[int, np.ndarray]:
    """Return a clip of a run as (sample rate, int16 samples).

    Raises:
        DataError: the run has no such clip, or its audio cannot be read.
    """
    for clip in read_clips(run):
        if clip["id"] == clip_id:
            if not clip["audio_path"]:
                raise DataError(
                    "This clip has no audio; the dataset contains only precomputed arrays."
                )
            try:
                wave, sample_rate = soundfile.read(clip["audio_path"], dtype="int16")
            except soundfile.LibsndfileError as error:
                raise DataError(f"{clip['audio_path']} cannot be read: {error}.") from None
            return sample_rate, wave
    raise DataError("The run has no such clip. Choose one from the list.")


def build(studio: Studio, shown: gr.Textbox) -> ListenTab:
    """Lay the tab out and connect it."""
    with gr.Tab("Listen", id="listen", elem_id="tab-listen") as page:
        empty = gr.Markdown(
            "There is no voice yet. Train one first; the button on the Start tab trains the demo "
            "voice.",
            visible=False, elem_id="listen-empty", elem_classes="summary",
        )  # fmt: skip
        with gr.Row():
            run = gr.Dropdown(
                [], label="Run", interactive=True, allow_custom_value=True, elem_id="listen-run"
            )
            checkpoint = gr.Dropdown(
                ["best", "last"], value="best", label="Checkpoint", interactive=True,
                allow_custom_value=True, elem_id="listen-checkpoint",
            )  # fmt: skip
            speaker = gr.Dropdown(
                [], label="Speaker", interactive=True, allow_custom_value=True,
                elem_id="listen-speaker",
            )  # fmt: skip
        text = gr.Textbox(
            label="Text", placeholder="What should the voice say?", lines=2, interactive=True,
            elem_id="listen-text", rtl=False,
        )  # fmt: skip
        with gr.Row():
            speak_now = gr.Button("Speak", variant="primary", elem_id="speak-now")
            speak = gr.Button("Speak to file", elem_id="speak")
            export = gr.Button("Export voice", elem_id="export-heard")
        where = gr.Markdown(elem_classes="where")
        files = gr.File(label="Exported voice", visible=False, elem_id="exported-heard")
        gr.HTML(apply_default_css=False, js_on_load=mount("mountSpeech"), elem_id="speech")
        with gr.Row():
            with gr.Column(min_width=300):
                spoken = gr.Audio(
                    label="Spoken", interactive=False, buttons=["download"], elem_id="spoken"
                )
            with gr.Column(min_width=300):
                original = gr.Audio(
                    label="Recording", interactive=False, buttons=["download"], elem_id="original"
                )
                clip = gr.Dropdown(
                    [], label="Compare with a recording (fills in its text)", interactive=True,
                    allow_custom_value=True, elem_id="listen-clip",
                )  # fmt: skip
        listening_test = gr.HTML(
            apply_default_css=False, js_on_load=mount("mountListeningTest"), elem_id="court"
        )
        gr.HTML(
            apply_default_css=False, js_on_load=mount("mountPreviews"), elem_id="listen-previews"
        )
    tab = ListenTab(
        empty, run, checkpoint, speaker, clip, text, speak_now, speak, export, where, files,
        spoken, original, listening_test,
    )  # fmt: skip
    _wire(tab, page, studio, shown)
    return tab


def choices_of(studio: Studio, name: str | None) -> list[object]:
    """Return updates of the checkpoint, speaker and recording dropdowns for a run."""
    try:
        run = studio.library.get(name or "")
    except TimbreError:
        return [gr.Dropdown(["best", "last"]), gr.Dropdown([]), gr.Dropdown([])]
    clips = read_clips(run)
    steps = [str(info.step) for info in reversed(run.checkpoints())]
    speakers = list(dict.fromkeys(clip["speaker"] for clip in clips))
    labels = [(f"{clip['text'][:80]} ({clip['split']})", clip["id"]) for clip in clips]
    return [
        gr.Dropdown(["best", "last", *steps], value="best"),
        gr.Dropdown(speakers, value=speakers[0] if speakers else None),
        gr.Dropdown(labels[:_MOST_CLIPS], value=None),
    ]


def _wire(tab: ListenTab, page: gr.Tab, studio: Studio, shown: gr.Textbox) -> None:
    def show_runs(wanted: str) -> list[object]:
        names = studio.library.names()
        chosen = wanted if wanted in names else (names[0] if names else None)
        listed = gr.Dropdown(names, value=chosen)
        return [gr.Markdown(visible=not names), listed, *choices_of(studio, chosen)]

    def show_choices(name: str | None) -> list[object]:
        return choices_of(studio, name)

    def hand_over(name: str | None, checkpoint: str | None) -> tuple[str, gr.File]:
        return export_files(studio, str(name or ""), str(checkpoint or "best"))

    choices = [tab.checkpoint, tab.speaker, tab.clip]
    page.select(
        show_runs,
        shown,
        [tab.empty, tab.run, *choices],
        **quiet(js="(run) => timbre.run || run"),
    ).then(None, tab.run, None, **quiet(js="(run) => { timbre.listenTo(run); }"))
    tab.run.input(show_choices, tab.run, choices, **quiet(js="(run) => timbre.listenTo(run)"))
    _wire_sound(tab, studio)
    tab.export.click(
        hand_over,
        [tab.run, tab.checkpoint],
        [tab.where, tab.files],
        **SPEAKING,
    )
    _wire_listening_test(tab.listening_test, studio)


def _wire_listening_test(listening_test: gr.HTML, studio: Studio) -> None:
    """Connect the listening test: one event synthesizes takes, the other stores a vote."""

    def speak(event: gr.EventData) -> None:
        with toasts():
            run = studio.library.get(event_detail(event, "run"))
            texts = event_detail(event, "texts").split("\n")
            entries = event_detail(event, "entries").split(",")
            make_takes(run, texts, entries, event_detail(event, "speaker"), read_clips(run))

    def keep_vote(event: gr.EventData) -> None:
        with toasts():
            run = studio.library.get(event_detail(event, "run"))
            heard = [event_detail(event, name) for name in ("first", "second", "winner")]
            vote(run, *heard)

    listening_test.apply(speak, **SPEAKING)
    listening_test.click(keep_vote, **PRESS).then(
        None, None, None, **quiet(js="() => { timbre.countVote(); }")
    )


def _wire_sound(tab: ListenTab, studio: Studio) -> None:
    def speak(run: str, text: str, speaker: str | None, checkpoint: str) -> str:
        with toasts():
            if not (text or "").strip():
                raise DataError("The text is empty. Write a sentence first.")
            voice = speaker or ""
            return str(speak_with(studio, run, text, speaker=voice, checkpoint=checkpoint))

    def play_original(name: str, clip_id: str | None) -> list[object]:
        if not clip_id:
            return [None, gr.skip(), gr.skip()]
        with toasts():
            run = studio.library.get(name)
            audio = original_audio(run, clip_id)
        clip = next(clip for clip in read_clips(run) if clip["id"] == clip_id)
        return [audio, clip["text"], clip["speaker"]]

    tab.clip.input(
        play_original,
        [tab.run, tab.clip],
        [tab.original, tab.text, tab.speaker],
        **PRIVATE,
    )
    asked = [tab.run, tab.text, tab.speaker, tab.checkpoint]
    gr.on(
        [tab.speak_now.click, tab.text.submit],
        None,
        asked,
        # Through the list of calls, so that a press before the scripts have loaded counts too.
        js=f"(...given) => {{ {queued('speakNow', '...given')} }}",
        api_visibility="private",
    )
    tab.speak.click(
        speak,
        asked,
        tab.spoken,
        concurrency_limit=1,
        concurrency_id="speaking",
        api_name="speak",
        api_description="Speak a sentence with a checkpoint of a run and return the audio.",
    )
