"""The version of Timbre: the wheel, run folders, checkpoints and exports carry it."""

__version__ = "0.2.0"
