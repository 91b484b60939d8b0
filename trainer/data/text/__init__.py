"""Text of clips: normalization, sentences and character coverage."""
