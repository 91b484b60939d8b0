"""Optimizers, one per file; modules that start with an underscore hold what they share."""
