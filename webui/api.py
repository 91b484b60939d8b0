"""Endpoints: what a script may call through gradio_client; everything else is private."""

import uuid
from pathlib import Path
from typing import Any

from gradio.events import api

from trainer.config import DataConfig, RunConfig
from trainer.data.manifest import read_manifest
from trainer.errors import ConfigError
from webui import speaking
from webui.actions import perform, toasts
from webui.studio import Studio


def add_endpoints(studio: Studio) -> None:
    """Publish five endpoints on the page being built; the sixth, `speak`, is its own button."""

    def start_run(config: dict, name: str = "run") -> dict:
        """Start a run from a configuration as in run.json and return its name."""
        with toasts():
            _check_texts(name=name)
            if not isinstance(config, dict):
                raise ConfigError("'config' is no object. Give a configuration as in run.json.")
            run = studio.start(name, studio.checked(RunConfig.from_json(config)))
        return {"run": run.name}

    def stop_run(name: str) -> str:
        """Ask a run to save and stop after the current step."""
        with toasts():
            _check_texts(name=name)
            return perform(studio, "stop", name)

    def list_runs() -> dict[str, Any]:
        """Return every run with its state, newest first."""
        return {"runs": studio.overview.rows()}

    def check_dataset(train_csv: str, eval_csv: str = "", language: str = "en") -> dict[str, Any]:
        """Read lists on the server and return their totals and problems."""
        with toasts():
            _check_texts(train_csv=train_csv, eval_csv=eval_csv, language=language)
            data = DataConfig(train_csv=train_csv, eval_csv=eval_csv, language=language)
            manifest = read_manifest(data)
        # Clients take an object with a `path` for a file to fetch.
        sources = [
            {"file": source.path, "rows": source.num_rows, "dialect": source.dialect}
            for source in manifest.sources
        ]
        problems = [str(problem) for problem in manifest.problems]
        return manifest.summary() | {"sources": sources, "problems": problems}

    def export(run: str, checkpoint: str = "best", bf16: bool = False) -> str:
        """Write the weights of a run into a new folder on the server and return its path."""
        with toasts():
            _check_texts(run=run, checkpoint=checkpoint)
            return str(export_run(studio, run, checkpoint, bf16=bool(bf16)))

    for function in (start_run, stop_run, list_runs, check_dataset):
        api(function, concurrency_limit=None)
    api(export, concurrency_limit=1, concurrency_id="speaking")


def _check_texts(**given: Any) -> None:
    """Refuse what is no text: a client may send any JSON value."""
    wrong = [f"'{name}' is no text." for name, value in given.items() if not isinstance(value, str)]
    if wrong:
        raise ConfigError(wrong)


def speak_with(
    studio: Studio, name: str, text: str, *, speaker: str = "", checkpoint: str = "best"
) -> Path:
    """Speak a sentence into a new WAV file on its way to the browser."""
    run = studio.library.get(name)
    out = studio.scratch / f"{uuid.uuid4().hex}.wav"
    return speaking.speak(run, text, speaker=speaker, checkpoint=checkpoint, out=out)


def export_run(studio: Studio, name: str, checkpoint: str, *, bf16: bool = False) -> Path:
    """Write the weights of a run into a new folder beside its checkpoints and return it."""
    speaking.check_name(checkpoint)
    run = studio.library.get(name)
    wanted = f"{checkpoint}-bf16" if bf16 else checkpoint
    folder = run.folder / "exports" / wanted
    number = 1
    while folder.exists():
        number += 1
        folder = run.folder / "exports" / f"{wanted}-{number}"
    folder.parent.mkdir(exist_ok=True)
    return speaking.export(run, folder, checkpoint=checkpoint, bf16=bf16)
