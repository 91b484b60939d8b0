"""Lists of clips: read, check and rewrite CSV and JSON lines."""
