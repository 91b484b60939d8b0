"""A run is a folder: its log, its control files, its queue and its trash."""
