"""Tests of optimizations."""
