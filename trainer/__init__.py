"""Train text-to-speech models: data, model families, optimizers and the training loop.

Nothing in this package imports Gradio. The page uses the trainer, never the other way round.
"""

from trainer.config import RunConfig
from trainer.runs import Run
from trainer.version import __version__

__all__ = ["Run", "RunConfig", "__version__"]
