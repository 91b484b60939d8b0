"""The data road: manifest row to Clip, Features and Batch."""
