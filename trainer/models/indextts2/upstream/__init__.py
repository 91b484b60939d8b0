"""The original package, run in its own environment."""
