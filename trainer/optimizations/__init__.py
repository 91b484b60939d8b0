"""Optimizations, one checkbox and one file each."""
