"""Train text-to-speech models: data, model families, optimizers and the training loop.

Nothing in this package imports Gradio. The page uses the trainer, never the other way round.
"""

from trainer.core.run_config import RunConfig
from trainer.core.version import __version__
from trainer.runs.run import Run

__all__ = ["Run", "RunConfig", "__version__"]
