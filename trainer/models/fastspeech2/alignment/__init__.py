"""Durations of symbols: three ways to align text."""
