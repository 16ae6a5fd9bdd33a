"""Blocks so small that a matrix of forty rows crosses many of their edges."""

from collections.abc import Iterator

import pytest

from attnscope.attention import kernel_blocks, operation
from tests.devices.sizes import set_block_sizes

TINY = {"NARROW_ROWS": 4, "NARROW_COLUMNS": 10, "WIDE_ROWS": 6}


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Backends use tiny blocks during this test; plans from before or during it are not reused."""
    set_block_sizes(monkeypatch, streaming_columns=8, min_rows=5, max_rows=5)
    for name, value in TINY.items():
        monkeypatch.setattr(kernel_blocks, name, value)
    operation._cached_plan.cache_clear()
    yield
    operation._cached_plan.cache_clear()
