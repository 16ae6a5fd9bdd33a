"""Tiles cover exactly the cells of their regions, in few kernel calls."""

import pytest
from hypothesis import HealthCheck, given, settings

from attnscope.attention import regions, tiles
from attnscope.attention.regions import Region
from attnscope.attention.tiles import Kind, Tile, cut
from tests.attention.test_regions import cells, cells_of, sets


def repetitions(tile: Tile) -> list[Region]:
    """Each repetition of a tile as a region of its own."""
    shifts = [turn * tile.step for turn in range(tile.times)]
    first = tile.region
    return [
        Region(first.top + s, first.bottom + s, first.left + s, first.right + s, first.lowest, first.highest)
        for s in shifts
    ]


@pytest.mark.usefixtures("tiny_blocks")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sets)
def test_tiles_cover_each_cell_once(found: tuple[Region, ...]) -> None:
    listed = [cell for tile in cut(found) for region in repetitions(tile) for cell in cells_of(region)]
    assert len(listed) == len(set(listed))
    assert set(listed) == cells(found)


@pytest.mark.usefixtures("tiny_blocks")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sets)
def test_a_causal_tile_starts_at_its_corner_and_a_full_one_is_full(found: tuple[Region, ...]) -> None:
    for tile in cut(found):
        region = tile.region
        local = {(i - region.top, j - region.left) for i, j in cells_of(region)}
        rectangle = {(i, j) for i in range(tile.height) for j in range(tile.width)}
        if tile.kind is Kind.FULL:
            assert local == rectangle
        if tile.kind is Kind.CAUSAL:
            assert local == {(i, j) for i, j in rectangle if j <= i}
        assert tile.times == 1 or tile.step >= tile.height, "repetitions share rows"


def calls(found: tuple[Region, ...]) -> list[tuple[Kind, int]]:
    return [(tile.kind, tile.times) for tile in cut(found)]


def test_common_masks_take_few_calls() -> None:
    n = 32_768
    assert calls(regions.band(n, n, None, None)) == [(Kind.FULL, 1)]
    assert calls(regions.band(n, n, None, 0)) == [(Kind.CAUSAL, 1)]
    assert calls(regions.band(1, n, None, n - 1)) == [(Kind.FULL, 1)]
    assert calls(regions.band(100, n, None, n - 100)) == [(Kind.FULL, 1), (Kind.CAUSAL, 1)]
    assert len(cut(regions.band(n, n, -511, 0))) <= 16
    documents = tuple(regions.rectangle(s, s + 2048, s, s + 2048) for s in range(0, n, 2048))
    assert calls(regions.intersection(documents, regions.band(n, n, None, 0))) == [(Kind.CAUSAL, 16)]


def test_a_window_scores_little_more_than_it_keeps() -> None:
    n, width = 32_768, 512
    band = regions.band(n, n, 1 - width, 0)
    assert sum(tile.cells for tile in cut(band)) < 1.15 * regions.area(band)


def test_a_wide_band_needs_no_large_mask() -> None:
    n = 65_536
    dense = [tile for tile in cut(regions.band(n, n, -20_000, 10)) if tile.kind is Kind.DENSE]
    assert max(tile.height * tile.width for tile in dense) <= tiles.WIDE_ROWS * tiles.NARROW_COLUMNS
