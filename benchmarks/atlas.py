"""The cost of the tiles of one head: tiles at every zoom, the coarse levels, and their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from attnscope.atlas import ByteCache, HeadAtlas
from attnscope.atlas.plan import COARSE_STRIDE
from attnscope.attention import Causal
from attnscope.bench import Size
from attnscope.bench.matrix import random_head
from attnscope.bench.memory import with_peak_bytes
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import seconds
from attnscope.matrix import AttentionMatrix

CACHE = 2**28
BOUNDS = {1: 0.06, 8: 0.25}  # seconds for a tile, by its stride


def tables(size: Size, step: Callable[[str], None]) -> Iterator[Table]:
    """Run all measurements; yield one table each."""
    length = size.choose(small=16_384, full=131_072)
    step("tiles of every zoom")
    yield tiles(length, size.choose(small=8, full=40))
    step("the coarse levels")
    yield levels(length)


def tiles(length: int, count: int) -> Table:
    """Measure uncached tiles at random positions below the diagonal."""
    table = Table(
        title="tiles on demand",
        comparison=f"One head of 64, n = {length:,}, causal, fp32, log-sum-exp cached; {count} tiles of 256 x 256 "
        "at random positions of each level, computed and encoded in both channels: 95th percentile.",
        columns=("cells per bin", "time", "bound", "bound kept"),
    )
    matrix = make_head(length)
    _ = matrix.lse
    atlas = HeadAtlas(matrix, ByteCache(CACHE), "head")
    atlas.close()  # do not compute coarse levels in the background
    draw = torch.Generator().manual_seed(0)
    for z in reversed(range(atlas.plan.deepest + 1)):
        stride = atlas.plan.stride(z)
        if stride >= COARSE_STRIDE:
            break
        places = [(y, x) for y in range(atlas.plan.count_tiles(z)[0]) for x in range(y + 1)]
        chosen = [places[at] for at in torch.randperm(len(places), generator=draw)[:count].tolist()]
        times = sorted(seconds(lambda z=z, y=y, x=x: atlas.tile(z, y, x, "mean")) for y, x in chosen)
        slow, bound = times[int(0.95 * (len(times) - 1))], BOUNDS.get(stride)
        if bound is None:
            table.add(f"{stride} x {stride}", duration(slow), "", "")
        else:
            table.add(f"{stride} x {stride}", duration(slow), duration(bound), met=slow < bound)
    return table


def levels(length: int) -> Table:
    """Measure the coarse levels of a head, computed from query and key in one pass."""
    table = Table(
        title="coarse levels",
        comparison=f"One head of 64, n = {length:,}, causal, fp32: log-sum-exp, all levels of "
        f"{COARSE_STRIDE} x {COARSE_STRIDE} cells per bin and more in both channels, received and entropy. "
        "In a separate process.",
        columns=("what", "measured"),
    )
    (spent, cached), peak = with_peak_bytes(build, length)
    table.add("time", duration(spent))
    table.add("cached afterwards", f"{cached / 1e6:.0f} MB")
    table.add("peak memory of the process", f"{peak / 1e6:.0f} MB")
    return table


def build(length: int) -> tuple[float, int]:
    """Build the coarse levels; return the seconds that it takes and the bytes that they hold."""
    atlas = HeadAtlas(make_head(length), ByteCache(CACHE), "head")
    return seconds(atlas.build), atlas.nbytes


def make_head(length: int) -> AttentionMatrix:
    """Return the same random head each time."""
    torch.manual_seed(0)
    return AttentionMatrix(*random_head(length), mask=Causal()).batch(0).head(0)
