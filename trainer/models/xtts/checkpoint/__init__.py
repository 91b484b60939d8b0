"""Base folders and exports of XTTS v2."""
