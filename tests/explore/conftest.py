"""What the tests of the explorer share: a server of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.explore.serving import Handle, serving


@pytest.fixture
def served() -> Iterator[Callable[..., Handle]]:
    """`served(trace or library, stage=None, page=False)`: a server until the end of the test."""
    with ExitStack() as stack:
        yield lambda *shown, **options: stack.enter_context(serving(*shown, **options))
