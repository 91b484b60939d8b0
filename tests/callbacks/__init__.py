"""Tests of callbacks."""
