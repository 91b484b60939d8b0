"""Background jobs: child processes that the page starts and follows."""
