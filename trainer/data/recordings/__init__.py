"""Long recordings: find the pauses and cut them into clips."""
