"""Features of clips: compute, cache, sample and batch them."""
