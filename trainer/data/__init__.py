"""The data path: from a row of a list to Clip, Features and Batch."""
