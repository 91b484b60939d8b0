"""Optimizations, one checkbox and one file each; modules with an underscore hold shared code."""
