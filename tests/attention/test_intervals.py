"""Masks as intervals of keys, against plain sets of cells."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.attention import Causal, Documents, Full, Mask, Padding, Prefix, Window, from_bool
from attnscope.attention.algebra import RegionMask, Sizes
from attnscope.attention.intervals import Intervals, block_rows, to_intervals
from attnscope.attention.regions import Region
from tests.attention.test_regions import SIDE, cells, sets

CPU = torch.device("cpu")
SQUARE = Sizes(1, 1, SIDE, SIDE)


def keys_of_rows(found: set[tuple[int, int]]) -> list[set[int]]:
    return [{j for i, j in found if i == row} for row in range(SIDE)]


@given(sets)
def test_each_row_has_its_interval_or_some_row_has_several(found: tuple[Region, ...]) -> None:
    rows = keys_of_rows(cells(found))
    connected = all(len(keys) == max(keys) - min(keys) + 1 for keys in rows if keys)
    intervals = to_intervals(RegionMask((found,)), SQUARE, CPU)
    assert (intervals is not None) == connected
    if intervals is not None:
        for keys, start, stop in zip(rows, intervals.start[0].tolist(), intervals.stop[0].tolist(), strict=True):
            assert keys == set(range(start, stop))
        assert intervals.backward_only == all(j <= i for i, j in cells(found))


@given(sets)
def test_rows_without_keys_continue_the_largest_stop(found: tuple[Region, ...]) -> None:
    intervals = to_intervals(RegionMask((found,)), SQUARE, CPU)
    if intervals is not None:
        reached = 0
        for start, stop in zip(intervals.start[0].tolist(), intervals.stop[0].tolist(), strict=True):
            if start == stop:
                assert start == reached
            reached = max(reached, stop)


lengths = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted), min_size=1, max_size=12)


@given(lengths, st.integers(1, 9))
def test_the_rows_of_a_block_are_those_that_attend_to_it(ranges: list[list[int]], size: int) -> None:
    start, stop = torch.tensor([ranges], dtype=torch.int32).unbind(-1)
    left = torch.arange(0, 20, size, dtype=torch.int32)
    right = (left + size).clamp(max=20)
    bounds = block_rows(Intervals(start, stop, False), left, right)
    for block in range(len(left)):
        keys = set(range(int(left[block]), int(right[block])))
        first, last, full_first, full_last = (int(bound[0, block]) for bound in bounds)
        assert 0 <= first <= full_first <= full_last <= last <= len(ranges)
        for row, (begin, end) in enumerate(ranges):
            attended = keys & set(range(begin, end))
            assert not attended or first <= row < last
            assert attended == keys or not full_first <= row < full_last


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(0, 12), st.integers(0, 12))
def test_the_rows_of_a_block_are_tight_for_sorted_intervals(
    queries: int, keys: int, size: int, before: int, after: int
) -> None:
    sizes = Sizes(1, 1, queries, keys)
    mask = Window(before=before, after=after)
    intervals = to_intervals(mask.to_regions(sizes), sizes, CPU)
    assert intervals is not None
    left = torch.arange(0, keys, size, dtype=torch.int32)
    right = (left + size).clamp(max=keys)
    bounds = block_rows(intervals, left, right)
    allowed = mask.to_dense(sizes)[0, 0]
    for block in range(len(left)):
        part = allowed[:, int(left[block]) : int(right[block])]
        some, every = part.any(-1).nonzero().flatten().tolist(), part.all(-1).nonzero().flatten().tolist()
        first, last, full_first, full_last = (int(bound[0, block]) for bound in bounds)
        assert list(range(first, last)) == some
        assert list(range(full_first, full_last)) == every


MASKS: dict[str, Mask] = {
    "full": Full(),
    "causal": Causal(),
    "offsets": Causal([3, 0]),
    "window": Window(4),
    "encoder window": Window(before=3, after=2),
    "prefix": Causal() | Prefix([4, 7]),
    "documents": Causal() & Documents(torch.tensor([[0] * 4 + [1] * 5, [0] * 2 + [1] * 7])),
    "right padding": Padding([9, 5]) & Causal(),
    "left padding": Causal() & Padding(keep=torch.arange(9) >= torch.tensor([[2], [6]])),
    "window of documents": Window(3) & Documents(torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])),
    "later keys": ~Causal(),
    "nothing": Padding([0, 0]),
}


@pytest.mark.parametrize("queries", [9, 5, 0])
@pytest.mark.parametrize("name", MASKS)
def test_masks_with_one_interval_are_found(name: str, queries: int) -> None:
    sizes = Sizes(2, 1, queries, 9)
    intervals = to_intervals(MASKS[name].to_regions(sizes), sizes, CPU)
    assert intervals is not None
    columns = torch.arange(9)
    found = (columns >= intervals.start[..., None]) & (columns < intervals.stop[..., None])
    expected = MASKS[name].to_dense(sizes)[:, 0]
    assert torch.equal(found.expand(2, -1, -1), expected.expand(2, -1, -1))
    assert intervals.start.dtype == intervals.stop.dtype == torch.int32


@pytest.mark.parametrize(
    "mask",
    [
        Window(2) | Prefix(3),
        ~Window(before=2, after=2),
        Documents(torch.tensor([0, 0, 1, 1, 0, 0, 1, 1, 1])),
        from_bool(attend=torch.eye(9, dtype=torch.bool)),
        from_bool(attend=torch.arange(9)[None] % 2 == 0),
    ],
    ids=str,
)
def test_masks_with_several_intervals_have_none(mask: Mask) -> None:
    sizes = Sizes(2, 1, 9, 9)
    assert to_intervals(mask.to_regions(sizes), sizes, CPU) is None


class CountReads(TorchDispatchMode):
    """Counts the operations whose result is a number on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.operations = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        self.reads += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


def test_nothing_is_read_back_and_the_work_does_not_grow_with_the_length() -> None:
    counted = []
    for keys in (100, 10_000):
        sizes = Sizes(2, 4, keys, keys)
        documents = Documents(torch.arange(keys) // (keys // 5))
        regions = (Causal() & documents & Padding([keys, keys // 2])).to_regions(sizes)
        left = torch.arange(0, keys, 64, dtype=torch.int32)
        with CountReads() as counts:
            intervals = to_intervals(regions, sizes, CPU)
            assert intervals is not None
            block_rows(intervals, left, left + 64)
        assert counts.reads == 0
        counted.append(counts.operations)
    assert counted[0] == counted[1] <= 80
