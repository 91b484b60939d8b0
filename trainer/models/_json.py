"""The type of JSON objects that other programs wrote, or that are written for them."""

from typing import Any

Json = dict[str, Any]
"""A JSON object whose values are checked where they are read."""
