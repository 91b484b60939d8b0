"""Text of XTTS v2: cleaning, tokens and new letters."""
