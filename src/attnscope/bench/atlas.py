"""What the map of one head costs: tiles at every zoom, the coarse levels, and their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from attnscope.atlas import ByteCache, HeadAtlas
from attnscope.atlas.plan import COARSE_STRIDE
from attnscope.attention import Causal
from attnscope.bench.matrix import random_head
from attnscope.bench.memory import with_peak_bytes
from attnscope.bench.report import Table, duration
from attnscope.bench.timing import seconds
from attnscope.matrix import AttentionMatrix

CACHE = 2**28
BOUNDS = {1: 0.06, 8: 0.25}  # seconds for a tile by its stride, as a person waits for it


@dataclass(frozen=True, kw_only=True)
class Size:
    """How far each measurement goes."""

    length: int
    tiles: int


SIZES = {"small": Size(length=16_384, tiles=8), "full": Size(length=131_072, tiles=40)}


def tables(size: str, step: Callable[[str], None]) -> Iterator[Table]:
    """All measurements, one table each."""
    chosen = SIZES[size]
    step("tiles of every zoom")
    yield tiles(chosen.length, chosen.tiles)
    step("the coarse levels")
    yield levels(chosen.length)


def tiles(length: int, count: int) -> Table:
    """Tiles that nobody has asked for before, at random places below the diagonal."""
    table = Table(
        title="tiles on demand",
        comparison=f"One head of 64, n = {length:,}, causal, fp32, row normalisers known; {count} tiles of 256 x 256 "
        "at random places of each level, computed and encoded in both channels: 95th percentile.",
        columns=("pairs in a bin", "time", "bound", "bound kept"),
    )
    matrix = make_head(length)
    _ = matrix.lse
    atlas = HeadAtlas(matrix, ByteCache(CACHE), "head")
    atlas.close()  # no coarse levels beside what is measured
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
    """The coarse levels of a head in one pass, from query and key alone."""
    table = Table(
        title="coarse levels",
        comparison=f"One head of 64, n = {length:,}, causal, fp32: row normalisers, all levels of "
        f"{COARSE_STRIDE} x {COARSE_STRIDE} pairs and more in both channels, received and entropy. In its own process.",
        columns=("what", "measured"),
    )
    (spent, held), peak = with_peak_bytes(build, length)
    table.add("time", duration(spent))
    table.add("held afterwards", f"{held / 1e6:.0f} MB")
    table.add("peak of the process", f"{peak / 1e6:.0f} MB")
    return table


def build(length: int) -> tuple[float, int]:
    """Seconds that the coarse levels take, and bytes that they hold."""
    atlas = HeadAtlas(make_head(length), ByteCache(CACHE), "head")
    return seconds(atlas.build), atlas.nbytes


def make_head(length: int) -> AttentionMatrix:
    """The same head each time."""
    torch.manual_seed(0)
    return AttentionMatrix(*random_head(length), mask=Causal()).batch(0).head(0)
