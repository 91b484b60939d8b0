"""Model families, one file or folder each."""
