"""Weights of IndexTTS-2 in and out."""
