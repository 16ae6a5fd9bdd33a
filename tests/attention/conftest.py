"""Blocks so small that a matrix of forty rows crosses many of their edges."""

from collections.abc import Iterator

import pytest

from attnscope.attention import kernel_blocks, operation, plan

TINY = {
    (plan, "BLOCK_COLUMNS"): 8,
    (plan, "MIN_BLOCK_ROWS"): 5,
    (plan, "MAX_BLOCK_ROWS"): 5,
    (kernel_blocks, "NARROW_ROWS"): 4,
    (kernel_blocks, "NARROW_COLUMNS"): 10,
    (kernel_blocks, "WIDE_ROWS"): 6,
}


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Backends use tiny blocks during this test; plans from before or during it are not reused."""
    for (module, name), value in TINY.items():
        monkeypatch.setattr(module, name, value)
    operation._cached_plan.cache_clear()
    yield
    operation._cached_plan.cache_clear()
