"""Work on the state of an assembled run: its weights, their average, and one watched pass."""
