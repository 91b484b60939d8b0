"""The networks of IndexTTS-2 and their sizes."""
