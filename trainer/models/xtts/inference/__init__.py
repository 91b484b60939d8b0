"""Speech from a trained XTTS v2."""
