"""The trainer: data, models, optimizers and the loop; it has never heard of a page."""

from trainer.config import RunConfig
from trainer.runs import Run

__all__ = ["Run", "RunConfig"]
