"""Text of IndexTTS-2 as tokens."""
