"""Estimate memory, measure speed and find a learning rate."""
