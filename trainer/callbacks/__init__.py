"""Subscribers to the events of a run; `trainer/worker/subscribers.py` lists them."""
