"""Build the part of the Data tab that cuts long recordings into clips and transcribes them."""

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gradio as gr
from gradio.components import Component

from trainer.core.errors import DataError, RunError
from trainer.data.recordings.segmentation import AUDIO
from trainer.data.recordings.silence import SegmentationSettings
from webui.actions import event_detail, toasts
from webui.forms.event_options import PRIVATE, READING
from webui.forms.form import read_values
from webui.forms.form_validation import FieldValidator
from webui.forms.run_form import DataForm
from webui.scripts import mount
from webui.studio import Studio

_LONGEST = (2.0, 30.0)


@dataclass(frozen=True)
class RecordingsPart:
    """The fields, and the panel that shows the progress."""

    files: gr.File
    path: gr.Textbox
    speaker: gr.Textbox
    longest: gr.Number
    whisper: gr.Textbox
    cut: gr.Button
    panel: gr.HTML

    @property
    def asked(self) -> list[Component]:
        """The inputs of a cut."""
        return [self.files, self.path, self.speaker, self.longest, self.whisper]


def build() -> RecordingsPart:
    """Lay the part out in a closed accordion."""
    with gr.Accordion("Cut long recordings", open=False, elem_id="tapes"):
        gr.Markdown(
            "Cut recordings that have no list into clips at their pauses. Whisper can transcribe "
            "them; without it, type the texts here while you listen."
        )
        with gr.Row():
            with gr.Column(min_width=300):
                files = gr.File(
                    label="Upload recordings",
                    file_count="multiple",
                    file_types=list(AUDIO),
                    height=120,
                    elem_id="tapes-files",
                )
                path = gr.Textbox(
                    label="Recording or folder on the server",
                    info="The clips are saved in a new folder next to it.",
                    interactive=True,
                    max_lines=1,
                    elem_id="tapes-path",
                )
            with gr.Column(min_width=300):
                speaker = gr.Textbox(
                    label="Speaker name",
                    info="Leave empty to use the name of the recording's folder.",
                    interactive=True,
                    max_lines=1,
                    elem_id="tapes-speaker",
                )
                longest = gr.Number(
                    SegmentationSettings().longest_s,
                    label="Longest clip (s)",
                    minimum=_LONGEST[0],
                    maximum=_LONGEST[1],
                    interactive=True,
                    elem_id="tapes-longest",
                )
                whisper = gr.Textbox(
                    label="Whisper model",
                    info="A folder, or a name to download such as small or large-v3. Requires pip "
                    "install faster-whisper. Leave empty to skip transcription.",
                    interactive=True,
                    max_lines=1,
                    elem_id="tapes-whisper",
                )
                cut = gr.Button("Cut into clips", variant="primary", elem_id="cut-tapes")
        panel = gr.HTML(apply_default_css=False, js_on_load=mount("mountCut"), elem_id="cut-panel")
    return RecordingsPart(files, path, speaker, longest, whisper, cut, panel)


def wire(part: RecordingsPart, studio: Studio, form: DataForm, watch: FieldValidator) -> None:
    """Connect the part; the caller handles `panel.apply`, which asks to use the cut clips."""

    def press(
        text: str, files: list[str] | None, path: str | None, speaker: str | None,
        longest: float | None, whisper: str | None,
    ) -> None:  # fmt: skip
        with toasts():
            language = str(form.fields["language"].read(read_values(text)))
            start_cut(studio, files, path, speaker, longest, whisper, language)
            gr.Info("Cutting the recordings.", duration=4)

    def act(event: gr.EventData) -> None:
        if event_detail(event, "action") == "stop":
            studio.cutting.stop()

    part.cut.click(press, [watch.form, *part.asked], None, **READING).then(
        None, None, None, js="() => timbre.refreshSegmentation()", api_visibility="private"
    )
    part.panel.click(act, None, None, **PRIVATE)


def list_of_clips(studio: Studio) -> str:
    """Return the list of the clips that were cut last; show a toast if there is none."""
    with toasts():
        told = studio.cutting.lines()
        if not told or "list" not in told[-1]:
            raise RunError("No clips have been cut yet.")
    return str(told[-1]["list"])


def start_cut(
    studio: Studio, files: Sequence[str] | None, path: str | None, speaker: str | None,
    longest: object, whisper: str | None, language: str,
) -> None:  # fmt: skip
    """Start cutting uploaded recordings, or recordings on the server.

    Raises:
        DataError: there is nothing to cut, or the longest clip is out of bounds.
        RunError: a cut is already running.
    """
    if studio.cutting.is_running():
        raise RunError("This is already running. Wait until it finishes, or stop it first.")
    try:
        longest_s = float(str(longest))
    except ValueError:
        longest_s = 0.0
    low, high = _LONGEST
    if not low <= longest_s <= high:
        raise DataError(f"The longest clip must be between {low:g} and {high:g} s.")
    # One folder per length: cutting again with the same length continues where it stopped.
    ending = "clips" if longest_s == SegmentationSettings().longest_s else f"clips-{longest_s:g}s"
    source, out = _places(studio, files or [], (path or "").strip(), ending)
    words = ["cut", "--lines", f"--audio={source}", f"--out={out}", f"--longest={longest_s:g}"]
    given = {"speaker": speaker, "whisper": whisper, "language": language}
    chosen = {name: (value or "").strip() for name, value in given.items()}
    words += [f"--{name}={value}" for name, value in chosen.items() if value]
    studio.cutting.start(words, {"source": source.name})


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _places(studio: Studio, files: Sequence[str], path: str, ending: str) -> tuple[Path, Path]:
    """Return the source to cut and the output folder."""
    uploaded = [Path(file) for file in files if Path(file).suffix.lower() in AUDIO]
    if uploaded:
        facts = sorted((file.name, _digest(file)) for file in uploaded)
        name = hashlib.blake2b(repr(facts).encode(), digest_size=6).hexdigest()
        folder = studio.uploads / f"tapes-{name}"
        (folder / "recordings").mkdir(parents=True, exist_ok=True)
        for file in uploaded:
            shutil.copyfile(file, folder / "recordings" / file.name)
        return folder / "recordings", folder / ending
    if not path:
        raise DataError(
            "There is nothing to cut. Upload recordings, or enter a recording or folder."
        )
    source = Path(studio.absolute(path))
    if not source.exists():
        raise DataError(f"{source} does not exist. Enter a recording or a folder of them.")
    return source, source.parent / f"{source.stem}-{ending}"
