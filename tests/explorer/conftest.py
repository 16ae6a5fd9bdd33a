"""What the tests of the explorer share: servers, and a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.explorer.browser import chromium
from tests.explorer.pages import small_served
from tests.explorer.scenes import model_served
from tests.explorer.serving import Handle, serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run a page that did not get ready in time once more: a browser beside other tests may wait for the processor.

    Wrong pixels, numbers and texts fail at once.
    """
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=["TimeoutError", r"waited \d+ s for"]))


@pytest.fixture
def served() -> Iterator[Callable[..., Handle]]:
    """`served(trace or library, session=None, page=False)`: a server until the end of the test."""
    with ExitStack() as stack:
        yield lambda *shown, **options: stack.enter_context(serving(*shown, **options))


@pytest.fixture(scope="module")
def browser() -> Browser:
    """A browser for the pages of all files of this directory that run one after the other."""
    if not _browsers:
        _browsers.append(_until_directory_ends.enter_context(chromium()))
    return _browsers[0]


_browsers: list[Browser] = []
_until_directory_ends = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the browser before tests of other directories: while it runs, they cannot use an event loop."""
    if nextitem is not None and not nextitem.path.is_relative_to(Path(__file__).parent):
        close_browser()


def pytest_sessionfinish() -> None:
    """Close the browser here if no test follows: the last one may run again."""
    close_browser()


def close_browser() -> None:
    _browsers.clear()
    _until_directory_ends.close()


@pytest.fixture(scope="module")
def small() -> Iterator[Handle]:
    """A server of a short trace."""
    with small_served() as handle:
        yield handle


@pytest.fixture(scope="module")
def model_server() -> Iterator[Handle]:
    """A server with a small model that reads what is typed."""
    with model_served() as handle:
        yield handle
