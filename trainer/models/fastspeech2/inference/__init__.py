"""Speech from a trained FastSpeech 2."""
