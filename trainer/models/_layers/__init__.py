"""Layers that at least two model families share."""
