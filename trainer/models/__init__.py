"""Registry of model families: one file or folder each, found by name."""
