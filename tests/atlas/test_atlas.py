"""Tiles are what plain loops over the dense weights make of them, at once, from any thread, whatever is being built."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attnscope.atlas import ByteCache, HeadAtlas, Tile, ZoomPlan, atlas, codec, plan, pyramid
from attnscope.atlas.background import Job
from attnscope.atlas.codec import Header, decode, unpack
from attnscope.atlas.pyramid import PooledBins, Pyramid
from attnscope.attention import Bias, Causal, Full, Mask, Sinks, Softcap, Window, from_bool
from attnscope.attention.algebra import Sizes
from attnscope.errors import AttnScopeError, Cancelled, SettingError, ShapeError, UnsupportedError
from attnscope.matrix import AttentionMatrix, reference
from tests.atlas.test_background import Gate

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
SHAPES = [(n, n) for n in (1, 2, 5, 255, 256, 257, 1000)] + [(300, 70), (70, 300), (1, 700)]
LARGE = 8300  # tokens with two coarse levels


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 8 x 8 bins and a pyramid from stride 4 on, so that a short head has many of both."""
    for module in (plan, pyramid):
        monkeypatch.setattr(module, "TILE_SIZE", 8)
    defaults = HeadAtlas.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "coarse_stride", 4)


CAUSAL = Causal()


def head(shape: tuple[int, int], mask: Mask = CAUSAL, **options) -> AttentionMatrix:
    generator = torch.Generator().manual_seed(sum(shape))
    query, key = (torch.randn(length, 8, generator=generator) for length in shape)
    return AttentionMatrix(3 * query, key, mask=mask, **options)


def opened(matrix: AttentionMatrix, limit: int = 2**26) -> HeadAtlas:
    return HeadAtlas(matrix, ByteCache(limit), "a head")


def every_place(zooms: ZoomPlan) -> Iterator[tuple[int, int, int]]:
    for z in range(zooms.deepest + 1):
        down, across = zooms.count_tiles(z)
        yield from ((z, y, x) for y in range(down) for x in range(across))


def true_tile(dense: NDArray, allowed: NDArray, edges: tuple[list[int], list[int]], channel: str) -> NDArray:
    """Values of bins by plain loops; NaN where nothing is allowed."""
    found = np.full((len(edges[0]) - 1, len(edges[1]) - 1), np.nan)
    if found.shape == (edges[0][-1] - edges[0][0], edges[1][-1] - edges[1][0]):  # cells, which no loop has to gather
        cells = np.ix_(edges[0][:-1], edges[1][:-1])
        return np.where(allowed[cells], dense[cells], np.nan)
    for i, (top, bottom) in enumerate(pairwise(edges[0])):
        for j, (left, right) in enumerate(pairwise(edges[1])):
            seen = dense[top:bottom, left:right][allowed[top:bottom, left:right]]
            if seen.size:
                found[i, j] = seen.mean() if channel == "mean" else seen.max()
    return found


def assert_codes(tile: Tile, values: NDArray) -> None:
    """A tile's codes are those of these values, or the next ones."""
    if tile.state == "empty":
        assert tile.body == b""
        assert np.isnan(values).all()
        return
    header, codes = unpack(tile.body)
    assert (header.rows, header.columns) == values.shape
    right = codec.encode(np.nan_to_num(values), ~np.isnan(values))
    assert np.array_equal(codes == 0, right == 0)
    assert np.abs(codes.astype(int) - right.astype(int)).max() <= 1
    some = values[values > 0]
    if some.size:
        assert header.log2min == pytest.approx(math.log2(some.min()), abs=1e-3)
        assert header.log2max == pytest.approx(math.log2(some.max()), abs=1e-3)
    assert bool(header.flags & codec.EXACT) == (tile.state == "exact")
    assert bool(header.flags & codec.PARTIAL) == (tile.state == "partial")


def assert_all_tiles(matrix: AttentionMatrix, mask: Mask) -> set[str]:
    """Every tile of every level against the dense weights; which states there were."""
    shown = opened(matrix)
    shown.build()
    queries, keys = matrix.shape
    dense = matrix.to_dense().double().numpy()
    allowed = mask.to_dense(Sizes(1, 1, queries, keys))[0, 0].expand(queries, keys).numpy()
    states = set()
    for place in every_place(shown.plan):
        edges = shown.plan.edges(*place)
        area = allowed[edges[0][0] : edges[0][-1], edges[1][0] : edges[1][-1]]
        for channel in ("mean", "max"):
            tile = shown.tile(*place, channel)
            assert_codes(tile, true_tile(dense, allowed, edges, channel))
            states.add(tile.state)
            if tile.body:
                header = Header.unpack(tile.body)
                assert (header.z, header.y, header.x) == place
                assert header.channel == ("mean", "max").index(channel)
                assert bool(header.flags & codec.PARTLY_MASKED) == (not area.all())
    return states


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_tile_is_that_of_the_dense_weights(shape: tuple[int, int]) -> None:
    states = assert_all_tiles(head(shape), Causal())
    assert "exact" in states
    assert ("pooled" in states) == (max(shape) > 256)


MASKS = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(9),
    "no structure": from_bool(attend=torch.rand(120, 120, generator=torch.Generator().manual_seed(1)) > 0.7),
    "almost nothing": from_bool(attend=torch.eye(120) > 0),
}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("mask", MASKS)
def test_every_tile_of_a_pyramid_is_that_of_the_dense_weights(mask: str) -> None:
    states = assert_all_tiles(head((120, 120), MASKS[mask]), MASKS[mask])
    assert states == {"exact", "pooled"} | (set() if mask in ("full", "no structure") else {"empty"})


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("shape", [(1, 1), (33, 33), (97, 97), (64, 64), (65, 31), (20, 131), (150, 9)], ids=str)
def test_pyramids_of_any_shape_are_those_of_the_dense_weights(shape: tuple[int, int]) -> None:
    assert_all_tiles(head(shape), Causal())


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    "score", [Softcap(2.0), Softcap(2.0) + Sinks(torch.zeros(1)), Bias(torch.randn(90, 90))], ids=str
)
def test_scores_that_are_streamed_have_pyramids(score: Softcap) -> None:
    assert_all_tiles(head((90, 90), score_mod=score), Causal())


@pytest.mark.usefixtures("small_tiles")
def test_weights_that_are_there_have_pyramids() -> None:
    dense = head((90, 90)).to_dense()
    assert_all_tiles(AttentionMatrix.from_dense(dense), Causal())


@pytest.mark.usefixtures("small_tiles")
def test_rows_still_sum_to_one_at_every_level() -> None:
    shown = opened(head((100, 100), Full()))
    for z in range(shown.plan.deepest + 1):
        down, across = shown.plan.count_tiles(z)
        for y in range(down):
            parts = [shown.matrix.bins(*shown.plan.edges(z, y, x)).sums for x in range(across)]
            rows = np.diff(shown.plan.edges(z, y, 0)[0])
            np.testing.assert_allclose(torch.cat(parts, 1).sum(1), rows, rtol=1e-5)


@pytest.mark.usefixtures("small_tiles")
def test_what_shines_in_a_tile_shines_in_its_parent() -> None:
    shown = opened(head((100, 100)))
    shown.build()

    def codes(z: int) -> NDArray:
        down, across = shown.plan.count_tiles(z)
        tiles = [[shown.tile(z, y, x, "max") for x in range(across)] for y in range(down)]
        rows = []
        for y, row in enumerate(tiles):
            shapes = [tuple(len(edges) - 1 for edges in shown.plan.edges(z, y, x)) for x in range(across)]
            parts = [
                unpack(tile.body)[1] if tile.body else np.zeros(shape) for tile, shape in zip(row, shapes, strict=True)
            ]
            rows.append(np.concatenate(parts, 1))
        return np.concatenate(rows).astype(int)

    for z in range(shown.plan.deepest):
        children = codes(z + 1)
        even = np.pad(children, [(0, size % 2) for size in children.shape])
        parents = even.reshape(even.shape[0] // 2, 2, even.shape[1] // 2, 2).max((1, 3))
        same_numbers = z + 1 in shown.plan.coarse_levels  # where they are computed apart, the last digit may differ
        assert np.abs(codes(z) - parents).max() <= (0 if same_numbers else 1)


@pytest.fixture(scope="module")
def large() -> HeadAtlas:
    """A head with strong links from queries to keys that are spread over it, in the midst of noise."""
    generator = torch.Generator().manual_seed(0)
    query, key = (0.1 * torch.randn(LARGE, 64, generator=generator) for _ in range(2))
    rows, columns = links()
    marks = torch.randn(len(rows), 64, generator=generator)
    query[rows], key[columns] = 0.4 * marks, marks
    shown = opened(AttentionMatrix(query, key, mask=Causal(), scale=1.0))
    shown.build()
    return shown


def links() -> tuple[NDArray, NDArray]:
    draw = np.random.default_rng(3)
    columns = np.sort(draw.choice(LARGE // 2, 200, replace=False))
    return draw.permutation(columns) + LARGE // 2 - 1, columns


def test_two_hundred_strong_links_are_all_seen_from_afar(large: HeadAtlas) -> None:
    rows, columns = links()
    assert large.plan.stride(0) == 64
    tile = large.tile(0, 0, 0, "max")
    assert tile.state == "pooled"
    shown = decode(unpack(tile.body)[1])[rows // 64, columns // 64]
    weights = large.matrix.at(torch.from_numpy(rows), torch.from_numpy(columns)).numpy()
    assert weights.min() > 0.9
    assert (shown >= 0.95 * weights).all()
    assert np.nanmedian(decode(unpack(tile.body)[1])) < 0.1


def test_the_pyramid_is_what_would_be_computed_on_demand(large: HeadAtlas) -> None:
    for z in large.plan.coarse_levels:
        for place in every_place(large.plan):
            if place[0] != z:
                continue
            found = PooledBins.from_bins(large.matrix.bins(*large.plan.edges(*place)))
            for channel in ("mean", "max"):
                tile = large.tile(*place, channel)
                right = found.total / found.cells.clip(min=1) if channel == "mean" else found.largest
                assert_codes(tile, np.where(found.cells > 0, right, np.nan))
                assert (tile.state == "empty") == (place == (1, 0, 1))


def test_tiles_and_pyramid_take_a_byte_a_bin_and_channel(large: HeadAtlas) -> None:
    bins = sum(
        math.prod(len(edges) - 1 for edges in large.plan.edges(*place))
        for place in [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)]
    )
    assert large.nbytes == 2 * (bins + 4 * 32) + 2 * 4 * LARGE


@pytest.mark.parametrize("shape", [(5, 5), (300, 300), (70, 300)], ids=str)
def test_marginals_are_mean_and_maximum_of_each_bin(shape: tuple[int, int]) -> None:
    shown = opened(head(shape))
    dense = shown.matrix.to_dense().double()
    right = {"entropy": reference.entropy(dense), "received": reference.received(dense)}
    for kind, values in right.items():
        for z in range(shown.plan.deepest + 1):
            stride = shown.plan.stride(z)
            for block in range(shown.plan.count_tiles(z)[0 if kind == "entropy" else 1]):
                header, found = unpack(shown.marginal(kind, z, block))
                some = values[block * 256 * stride : (block + 1) * 256 * stride].split(stride)
                np.testing.assert_allclose(found[0], [float(part.mean()) for part in some], rtol=2e-5, atol=1e-5)
                np.testing.assert_allclose(found[1], [float(part.max()) for part in some], rtol=2e-5, atol=1e-5)
                assert (header.dtype, header.channel, header.rows) == (codec.F32, codec.NONE, 2)
                assert (header.z, header.y, header.x) == (z, block, 0)
                assert header.flags == (codec.EXACT if stride == 1 else 0)


def test_what_is_outside_is_refused() -> None:
    shown = opened(head((300, 70)))
    for place in ((0, 1, 0), (2, 0, 0), (1, 0, 1), (1, -1, 0)):
        with pytest.raises(IndexError):
            shown.tile(*place, "mean")
    with pytest.raises(IndexError):
        shown.marginal("received", 1, 1)
    with pytest.raises(IndexError):
        shown.marginal("entropy", 5, 0)
    with pytest.raises(SettingError, match="median"):
        shown.tile(0, 0, 0, "median")
    with pytest.raises(SettingError, match="surprise"):
        shown.marginal("surprise", 0, 0)
    assert shown.progress() is None


def test_an_atlas_is_of_one_head() -> None:
    with pytest.raises(ShapeError, match="head"):
        opened(AttentionMatrix(torch.randn(2, 5, 4), torch.randn(2, 5, 4)))


@contextmanager
def busy_worker() -> Iterator[None]:
    """The background has something else to do meanwhile."""
    gate = Gate()
    job = Job(gate, atlas.FOREGROUND)
    atlas.WORKER.submit(job)
    assert gate.begun.wait(10)
    try:
        yield
    finally:
        gate.open.set()
        assert job.finished.wait(10)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a pyramid, however small."""
    monkeypatch.setattr(atlas, "MAX_WAIT_CELLS", 0)


@pytest.mark.usefixtures("small_tiles", "impatient")
def test_until_the_pyramid_is_there_tiles_are_previews_that_say_so() -> None:
    shown = opened(head((120, 120)))
    dense, allowed = shown.matrix.to_dense().double().numpy(), Causal().to_dense(Sizes(1, 1, 120, 120))[0, 0].numpy()
    assert shown.progress() is None
    with busy_worker():
        for place in every_place(shown.plan):
            tile = shown.tile(*place, "max")
            rows, columns = shown.plan.edges(*place)
            if shown.plan.stride(place[0]) < 4:
                assert tile.state != "partial"
                continue
            assert tile.state == "partial"
            middle = [(top + bottom) // 2 for top, bottom in pairwise(rows)]
            right = true_tile(dense[middle], allowed[middle], (list(range(len(middle) + 1)), columns), "max")
            assert_codes(tile, right)
        assert shown.progress() == 0.0
        header, values = unpack(shown.marginal("entropy", 0, 0))
        assert header.flags == codec.PARTIAL
        assert np.isnan(values).all()
    shown.build()
    assert shown.progress() == 1.0
    assert shown.tile(0, 0, 0, "max").state == "pooled"
    assert Header.unpack(shown.marginal("entropy", 0, 0)).flags == 0


@pytest.mark.usefixtures("small_tiles")
def test_a_small_pyramid_is_waited_for() -> None:
    assert opened(head((120, 120))).tile(0, 0, 0, "mean").state == "pooled"


@pytest.mark.usefixtures("small_tiles", "impatient")
def test_an_atlas_that_is_closed_before_it_is_built_can_still_be_used() -> None:
    shown = opened(head((120, 120)))
    with busy_worker():
        assert shown.tile(0, 0, 0, "mean").state == "partial"
        shown.close()
        with pytest.raises(Cancelled):
            shown.build()
    assert shown.tile(0, 0, 0, "mean").state == "partial"
    assert shown.tile(shown.plan.deepest, 3, 2, "mean").state == "exact"
    assert shown.progress() is None


@pytest.mark.usefixtures("small_tiles")
def test_closing_what_is_built_changes_nothing() -> None:
    shown = opened(head((120, 120)))
    shown.build()
    before = shown.tile(0, 0, 0, "mean")
    shown.close()
    assert shown.tile(0, 0, 0, "mean") == before
    assert shown.progress() == 1.0


def built(levels: Pyramid, matrix: AttentionMatrix, hear: Callable, cancelled: Callable = lambda: False) -> None:
    """All steps."""
    while not levels.step(matrix, hear, cancelled):
        pass


@pytest.mark.usefixtures("small_tiles")
def test_a_build_that_is_stopped_leaves_the_rows_of_tiles_it_has_finished() -> None:
    matrix, shares = head((200, 200)), [0.0]
    whole, part = Pyramid(ZoomPlan(200, 200, 4)), Pyramid(ZoomPlan(200, 200, 4))
    built(whole, matrix, shares.append)
    assert shares[1:] == sorted(shares[1:])
    assert shares[-1] == pytest.approx(1.0)
    shares[:] = [0.0]
    with pytest.raises(Cancelled):
        built(part, matrix, shares.append, lambda: shares[-1] > 0.7)
    finest = part.plan.coarse_levels[0]
    assert part.has_row(finest, 0)
    assert not part.has_row(finest, part.plan.count_tiles(finest)[0] - 1)
    assert not part.has_row(0, 0)
    assert part.tile(finest, 0, 0) == whole.tile(finest, 0, 0)
    assert (part.entropy, part.received) == (None, None)
    built(part, matrix, shares.append)
    assert part.received is not None
    assert whole.received is not None
    assert part.tile(0, 0, 0) == whole.tile(0, 0, 0)  # and it can go on
    assert np.array_equal(part.received, whole.received)


@pytest.mark.usefixtures("small_tiles")
def test_a_build_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Pyramid, "step", fail)
    shown = opened(head((120, 120)))
    with pytest.raises(MemoryError):
        shown.build()
    with pytest.raises(AttnScopeError, match="a head could not be built: no room"):
        shown.tile(0, 0, 0, "mean")
    assert shown.tile(shown.plan.deepest, 3, 2, "mean").state == "exact"


def test_a_short_head_does_not_wait_for_the_background() -> None:
    with busy_worker():
        assert not np.isnan(unpack(opened(head((9, 9))).marginal("received", 0, 0))[1]).any()


def test_weights_that_are_no_numbers_are_refused_and_do_not_look_masked() -> None:
    query = torch.randn(9, 4)
    query[3, 1] = torch.nan
    for shown in (
        opened(AttentionMatrix(query, query)),
        opened(AttentionMatrix.from_dense(torch.full((9, 9), torch.inf))),
    ):
        with pytest.raises(UnsupportedError, match="NaN"):
            shown.tile(0, 0, 0, "mean")


WHILE_BUILDING = """
import torch
from attnscope.atlas import ByteCache, HeadAtlas
from attnscope.matrix import AttentionMatrix

atlas = HeadAtlas(AttentionMatrix(torch.randn(20_000, 8), torch.randn(20_000, 8)), ByteCache(2**20), "a head")
atlas.tile(0, 0, 0, "mean")
assert atlas.progress() < 1
"""


def test_a_program_may_end_while_a_head_is_being_built() -> None:
    ended = subprocess.run([sys.executable, "-c", WHILE_BUILDING], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_threads_that_ask_for_the_same_tile_compute_it_once() -> None:
    reports: list[float] = []
    shown = opened(head((700, 700)).with_options(progress=reports.append))
    everybody = threading.Barrier(8)

    def ask(channel: str) -> Tile:
        everybody.wait(10)
        return shown.tile(1, 0, 0, channel)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, ["mean", "max"] * 4))
    assert len(set(answers)) == 2
    assert reports.count(1.0) == 1


def test_tiles_from_many_threads_are_those_from_one() -> None:
    places = [(place, channel) for place in every_place(ZoomPlan(1000, 1000)) for channel in ("mean", "max")]
    alone, together = opened(head((1000, 1000))), opened(head((1000, 1000)))
    right = [alone.tile(*place, channel) for place, channel in places]
    with ThreadPoolExecutor(8) as pool:
        found = [
            answer.result(30) for answer in [pool.submit(together.tile, *place, channel) for place, channel in places]
        ]
    assert [tile.state for tile in found] == [tile.state for tile in right]
    for one, other in zip(found, right, strict=True):
        if one.body:
            difference = unpack(one.body)[1].astype(int) - unpack(other.body)[1].astype(int)
            assert np.abs(difference).max() <= 1


def test_the_cache_stays_within_its_limit() -> None:
    cache = ByteCache(300_000)
    shown = [HeadAtlas(head((700, 700)), cache, name) for name in ("one", "other")]
    for atlas_of_head in shown:
        for place in every_place(atlas_of_head.plan):
            atlas_of_head.tile(*place, "mean")
            assert cache.nbytes <= 300_000
    assert cache.nbytes > 100_000


def test_heads_that_share_a_cache_keep_their_tiles_apart() -> None:
    cache = ByteCache(2**20)
    one, other = HeadAtlas(head((20, 20)), cache, "one"), HeadAtlas(head((20, 20), Full()), cache, "other")
    assert one.tile(0, 0, 0, "mean") != other.tile(0, 0, 0, "mean")


@pytest.mark.parametrize("entry", GOLDEN["matrices"], ids=lambda entry: f"{len(entry['weights'])} rows")
def test_bins_and_folds_have_the_golden_codes(entry: dict) -> None:
    weights, allowed = np.array(entry["weights"]), np.array(entry["allowed"]) > 0
    logarithms = torch.from_numpy(weights).log().masked_fill(~torch.from_numpy(allowed), 0.0)
    queries, keys = weights.shape
    query, key = (torch.zeros(length, 1, dtype=torch.float64) for length in (queries, keys))
    lse = torch.zeros(queries, dtype=torch.float64)
    mask = from_bool(attend=torch.from_numpy(allowed))
    matrix = AttentionMatrix(query, key, mask=mask, score_mod=Bias(logarithms), lse=lse)
    folded: PooledBins | None = None
    for level in entry["levels"]:
        stride = level["stride"]
        binned = PooledBins.from_bins(
            matrix.bins([*range(0, queries, stride), queries], [*range(0, keys, stride), keys])
        )
        folded = binned if folded is None else folded.downsample()
        for found in (binned, folded):
            assert found.cells.tolist() == level["cells"]
            mean = codec.encode(found.total / found.cells.clip(min=1), found.cells)
            assert np.abs(mean.astype(int) - level["mean"]).max() <= 1
            assert np.abs(codec.encode(found.largest, found.cells).astype(int) - level["max"]).max() <= 1
