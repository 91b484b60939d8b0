"""Comparisons with original implementations."""
