"""Speech, exports, listening tests and speech metrics."""
