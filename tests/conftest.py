"""What holds for every test, and fixtures that several test files share."""

import gc
import os

import pytest

from tests.helpers.browser import browser, context, server, start

__all__ = ["browser", "context", "server", "start"]
_LONG = (
    "test_browser", "test_distributed", "test_end_to_end", "test_network",
    "test_optimizations_families", "test_page", "test_race", "test_xtts",
)  # fmt: skip
"""Files that take longest start first, so that no worker ends long after the other."""


def pytest_configure() -> None:
    """Give every test and what it starts one thread, before anything imports torch.

    Two test processes with two threads each wait for one another longer than they compute, and a
    run resumes bit for bit only with the number of threads it began with.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest in front; within a file the order stays."""
    items.sort(key=lambda item: not item.path.name.startswith(_LONG))


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> None:
    """Leave all that exists before a file's tests out of the search for garbage.

    A run searches at its start and in every pause. Hundreds of runs in one process, each through
    all that pytest and the tests before have loaded, cost more than their training.
    """
    gc.collect()
    gc.freeze()
