"""Blocks cover exactly the cells of their regions, in few kernel calls."""

import pytest
from hypothesis import HealthCheck, given, settings

from attnscope.attention import kernel_blocks, regions
from attnscope.attention.kernel_blocks import BlockKind, KernelBlock, split_regions
from attnscope.attention.regions import Region
from tests.attention.test_regions import cells, cells_of, sets


def repeats(block: KernelBlock) -> list[Region]:
    """Each repeat of a block as a region of its own."""
    shifts = [turn * block.step for turn in range(block.repeats)]
    first = block.region
    return [
        Region(first.top + s, first.bottom + s, first.left + s, first.right + s, first.lowest, first.highest)
        for s in shifts
    ]


@pytest.mark.usefixtures("tiny_blocks")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sets)
def test_blocks_cover_each_cell_once(found: tuple[Region, ...]) -> None:
    listed = [cell for block in split_regions(found) for region in repeats(block) for cell in cells_of(region)]
    assert len(listed) == len(set(listed))
    assert set(listed) == cells(found)


@pytest.mark.usefixtures("tiny_blocks")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sets)
def test_a_causal_block_starts_at_its_corner_and_a_full_one_is_full(found: tuple[Region, ...]) -> None:
    for block in split_regions(found):
        region = block.region
        local = {(i - region.top, j - region.left) for i, j in cells_of(region)}
        rectangle = {(i, j) for i in range(block.height) for j in range(block.width)}
        if block.kind is BlockKind.FULL:
            assert local == rectangle
        if block.kind is BlockKind.CAUSAL:
            assert local == {(i, j) for i, j in rectangle if j <= i}
        assert block.repeats == 1 or block.step >= block.height, "repeats share rows"


def calls(found: tuple[Region, ...]) -> list[tuple[BlockKind, int]]:
    return [(block.kind, block.repeats) for block in split_regions(found)]


def test_common_masks_take_few_calls() -> None:
    n = 32_768
    assert calls(regions.band(n, n, None, None)) == [(BlockKind.FULL, 1)]
    assert calls(regions.band(n, n, None, 0)) == [(BlockKind.CAUSAL, 1)]
    assert calls(regions.band(1, n, None, n - 1)) == [(BlockKind.FULL, 1)]
    assert calls(regions.band(100, n, None, n - 100)) == [(BlockKind.FULL, 1), (BlockKind.CAUSAL, 1)]
    assert len(split_regions(regions.band(n, n, -511, 0))) <= 16
    documents = tuple(regions.rectangle(s, s + 2048, s, s + 2048) for s in range(0, n, 2048))
    assert calls(regions.intersection(documents, regions.band(n, n, None, 0))) == [(BlockKind.CAUSAL, 16)]


def test_a_window_scores_little_more_than_it_keeps() -> None:
    n, width = 32_768, 512
    band = regions.band(n, n, 1 - width, 0)
    assert sum(block.cells for block in split_regions(band)) < 1.15 * regions.area(band)


def test_a_wide_band_needs_no_large_mask() -> None:
    n = 65_536
    dense = [block for block in split_regions(regions.band(n, n, -20_000, 10)) if block.kind is BlockKind.DENSE]
    assert max(block.height * block.width for block in dense) <= kernel_blocks.WIDE_ROWS * kernel_blocks.NARROW_COLUMNS
