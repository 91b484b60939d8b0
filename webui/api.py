"""Define the endpoints that scripts may call through gradio_client; all others are private."""

import uuid
from pathlib import Path
from typing import Any

from gradio.events import api

from trainer.core.errors import ConfigError
from trainer.core.run_config import DataConfig, RunConfig
from trainer.data.lists.manifest import read_manifest
from webui.actions import perform, toasts
from webui.jobs import synthesis
from webui.studio import Studio


def add_endpoints(studio: Studio) -> None:
    """Add five endpoints to the page being built; the sixth, `speak`, belongs to its button."""

    def start_run(config: dict, name: str = "run") -> dict:
        """Start a run from a configuration in the format of run.json and return its name."""
        with toasts():
            _check_texts(name=name)
            if not isinstance(config, dict):
                raise ConfigError("'config' must be a JSON object in the format of run.json.")
            run = studio.start(name, studio.checked(RunConfig.from_json(config)))
        return {"run": run.name}

    def stop_run(name: str) -> str:
        """Ask a run to save a checkpoint and stop after the current step."""
        with toasts():
            _check_texts(name=name)
            return perform(studio, "stop", name)

    def list_runs() -> dict[str, Any]:
        """Return all runs with their states, newest first."""
        return {"runs": studio.run_list.rows()}

    def check_dataset(train_csv: str, eval_csv: str = "", language: str = "en") -> dict[str, Any]:
        """Read lists on the server and return a summary of their clips and problems."""
        with toasts():
            _check_texts(train_csv=train_csv, eval_csv=eval_csv, language=language)
            data = DataConfig(train_csv=train_csv, eval_csv=eval_csv, language=language)
            manifest = read_manifest(data)
        # The key is `file` because gradio_client downloads any object that has a `path`.
        sources = [
            {"file": source.path, "rows": source.num_rows, "dialect": source.dialect}
            for source in manifest.sources
        ]
        problems = [str(problem) for problem in manifest.problems]
        return manifest.summary() | {"sources": sources, "problems": problems}

    def export(run: str, checkpoint: str = "best", bf16: bool = False) -> str:
        """Export the weights of a run to a new folder on the server and return its path."""
        with toasts():
            _check_texts(run=run, checkpoint=checkpoint)
            return str(export_run(studio, run, checkpoint, bf16=bool(bf16)))

    for function in (start_run, stop_run, list_runs, check_dataset):
        api(function, concurrency_limit=None)
    api(export, concurrency_limit=1, concurrency_id="speaking")


def _check_texts(**given: object) -> None:
    """Check that arguments are strings: a client may send any JSON value."""
    wrong = [
        f"'{name}' must be a string." for name, value in given.items() if not isinstance(value, str)
    ]
    if wrong:
        raise ConfigError(wrong)


def speak_with(
    studio: Studio, name: str, text: str, *, speaker: str = "", checkpoint: str = "best"
) -> Path:
    """Synthesize a sentence to a new WAV file in the scratch folder and return its path."""
    run = studio.library.get(name)
    out = studio.scratch / f"{uuid.uuid4().hex}.wav"
    return synthesis.speak(run, text, speaker=speaker, checkpoint=checkpoint, out=out)


def export_run(studio: Studio, name: str, checkpoint: str, *, bf16: bool = False) -> Path:
    """Export the weights of a run to a new folder in its `exports` and return the folder."""
    synthesis.check_name(checkpoint)
    run = studio.library.get(name)
    wanted = f"{checkpoint}-bf16" if bf16 else checkpoint
    folder = run.folder / "exports" / wanted
    number = 1
    while folder.exists():
        number += 1
        folder = run.folder / "exports" / f"{wanted}-{number}"
    folder.parent.mkdir(exist_ok=True)
    return synthesis.export(run, folder, checkpoint=checkpoint, bf16=bf16)
