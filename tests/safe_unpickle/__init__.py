"""Tests of safe_unpickle."""
