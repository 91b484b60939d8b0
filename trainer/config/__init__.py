"""From names and flags to a checked configuration."""
