"""The trainer: data, models, optimizers and the loop; it has never heard of a page."""
