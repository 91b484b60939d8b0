"""Tests; a package, so that no other `tests` is imported instead."""
