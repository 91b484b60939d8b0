"""Tests of race."""
