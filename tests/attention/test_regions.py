"""The algebra of regions against plain sets of cells."""

from hypothesis import given
from hypothesis import strategies as st

from attnscope.attention import regions
from attnscope.attention.regions import Region

SIDE = 9
numbers = st.integers(0, SIDE)
diagonals = st.integers(-SIDE - 1, SIDE + 1)
anything = st.builds(Region, numbers, numbers, numbers, numbers, diagonals, diagonals)
sets = st.lists(anything, max_size=3).map(
    lambda found: regions.union(tight(found[:1]), regions.union(tight(found[1:2]), tight(found[2:])))
)


def tight(found: list[Region]) -> tuple[Region, ...]:
    return tuple(region for given in found if (region := given.tighten()) is not None)


def cells(found: tuple[Region, ...]) -> set[tuple[int, int]]:
    """The cells of disjoint regions, each seen once."""
    listed = [cell for region in found for cell in cells_of(region)]
    assert len(listed) == len(set(listed)), "regions overlap"
    return set(listed)


def cells_of(region: Region) -> list[tuple[int, int]]:
    return [
        (i, j)
        for i in range(region.top, region.bottom)
        for j in range(region.left, region.right)
        if region.lowest <= j - i <= region.highest
    ]


@given(anything)
def test_tightening_keeps_the_cells_and_leaves_no_empty_row_or_column(region: Region) -> None:
    tightened = region.tighten()
    kept = [] if tightened is None else cells_of(tightened)
    assert kept == cells_of(region)
    if tightened is not None:
        assert {i for i, _ in kept} == set(range(tightened.top, tightened.bottom))
        assert {j for _, j in kept} == set(range(tightened.left, tightened.right))


@given(sets)
def test_area_counts_cells(found: tuple[Region, ...]) -> None:
    assert regions.area(found) == len(cells(found))


@given(sets, sets)
def test_the_operations_are_those_of_sets(first: tuple[Region, ...], second: tuple[Region, ...]) -> None:
    ones, twos = cells(first), cells(second)
    assert cells(regions.intersection(first, second)) == ones & twos
    assert cells(regions.union(first, second)) == ones | twos
    assert cells(regions.difference(first, second)) == ones - twos


@given(sets)
def test_complement_holds_the_other_cells(found: tuple[Region, ...]) -> None:
    everything = {(i, j) for i in range(SIDE) for j in range(SIDE)}
    assert cells(regions.complement(found, SIDE, SIDE)) == everything - cells(found)


def test_a_causal_band_of_a_million_rows_is_one_region() -> None:
    (triangle,) = regions.band(1_000_000, 1_000_000, None, 0)
    assert triangle.area == 1_000_000 * 1_000_001 // 2
