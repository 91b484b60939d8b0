"""Weights of FastSpeech 2 in and out."""
