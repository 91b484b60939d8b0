"""What the page tests share: a studio over a folder, and components outside a page."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import gradio as gr

from trainer.runs.run_store import RunStore
from webui.studio import Studio

Built = TypeVar("Built")


def in_blocks(build: Callable[[], Built]) -> Built:
    """Build components inside a page.

    Gradio makes an event loop that nobody closes for a page built outside of one.
    """

    async def run() -> Built:
        with gr.Blocks():
            return build()

    return asyncio.run(run())


def make_studio(folder: Path) -> Studio:
    """Return a studio whose runs, uploads and scratch files lie in a folder."""
    for name in ("uploads", "scratch"):
        (folder / name).mkdir(exist_ok=True)
    return Studio(RunStore(folder / "runs"), folder / "scratch", folder / "uploads", folder)
