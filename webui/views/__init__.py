"""Views: what the page shows of data and results."""
