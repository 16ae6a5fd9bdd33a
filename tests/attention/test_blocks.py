"""Blocks contain every allowed cell, none is empty, and full blocks are marked."""

from hypothesis import given
from hypothesis import strategies as st

from attnscope.attention import regions
from attnscope.attention.blocks import iter_blocks
from attnscope.attention.regions import Region
from tests.attention.test_regions import cells, sets


@given(sets, st.integers(1, 5), st.integers(1, 5))
def test_blocks_hold_every_cell_and_none_is_empty(found: tuple[Region, ...], rows: int, columns: int) -> None:
    wanted, visited = cells(found), set()
    for strip in iter_blocks(found, rows, columns):
        assert strip.bottom - strip.top <= rows
        for block in strip.columns:
            here = {(i, j) for i in range(strip.top, strip.bottom) for j in range(block.left, block.right)}
            assert not here & visited
            assert here & wanted
            assert block.is_full == (here <= wanted)
            visited |= here
    assert wanted <= visited


def test_a_window_has_linearly_many_blocks() -> None:
    strips = list(iter_blocks(regions.band(1_000_000, 1_000_000, -255, 0), 1024, 512))
    assert sum(len(strip.columns) for strip in strips) <= 4 * len(strips)
