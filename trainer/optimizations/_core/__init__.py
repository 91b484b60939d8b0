"""Building blocks that several optimizations share."""
