"""What listens to a run's events while it trains."""
