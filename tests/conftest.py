"""What holds for every test, and fixtures that several test files share."""

import os

from _browser import browser, context, server, start

__all__ = ["browser", "context", "server", "start"]


def pytest_configure() -> None:
    """Give every test and what it starts one thread, before anything imports torch.

    Two test processes with two threads each wait for one another longer than they compute, and a
    run resumes bit for bit only with the number of threads it began with.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
