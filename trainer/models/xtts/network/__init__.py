"""The networks of XTTS v2 and their sizes."""
