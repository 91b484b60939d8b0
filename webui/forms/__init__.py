"""Forms: dataclasses to widgets and back, with validation."""
