"""Blocks and tiles so small that a matrix of forty rows crosses many of their edges."""

from collections.abc import Iterator

import pytest

from attnscope.attention import operation, plan, tiles

TINY = {
    (plan, "BLOCK_COLUMNS"): 8,
    (plan, "MIN_BLOCK_ROWS"): 5,
    (plan, "MAX_BLOCK_ROWS"): 5,
    (tiles, "NARROW_ROWS"): 4,
    (tiles, "NARROW_COLUMNS"): 10,
    (tiles, "WIDE_ROWS"): 6,
}


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines walk in tiny steps during this test; plans that were made before or during it are forgotten."""
    for (module, name), value in TINY.items():
        monkeypatch.setattr(module, name, value)
    operation._kept_plan.cache_clear()
    yield
    operation._kept_plan.cache_clear()
