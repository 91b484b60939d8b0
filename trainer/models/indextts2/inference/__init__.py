"""Previews and speech from a trained IndexTTS-2."""
