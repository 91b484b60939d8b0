"""Save, verify and restore checkpoints; decide what a resume may change."""
