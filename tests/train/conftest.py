"""Rank processes that all tests of training share."""

from collections.abc import Iterator

import pytest

from tests.train.ranks import LastingRanks


@pytest.fixture(scope="session")
def ranks() -> Iterator[LastingRanks]:
    """Processes that run a function as ranks of one group."""
    lasting = LastingRanks()
    yield lasting
    lasting.stop()
