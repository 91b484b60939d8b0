"""Fixtures that several test files share."""

from _browser import browser, context, server, start

__all__ = ["browser", "context", "server", "start"]
