"""Building blocks that several optimizers share."""
