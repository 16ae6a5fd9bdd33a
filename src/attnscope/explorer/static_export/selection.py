"""Which answers a saved page brings along, the most important first.

In: a head, the part of it that is shown, and what is pinned. Out: paths in groups, as the page will ask for them: the
whole picture from far, then what is in view, then what lies around it. Does not know: answers, files.
Memory: a group at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import hypot
from typing import NamedTuple, TypeVar

from attnscope.atlas import TILE_SIZE, ZoomPlan

TOKENS = 1024  # the page asks for texts of tokens in blocks of so many
MAX_TEXT = 2**18  # tokens that are told at once for reading
SHORT, MAX_SHOWN_CELLS = 2**16, 2**20  # cells of a head that are kept as they are, and of the one that is shown
FEW = 16  # tiles of a level that is kept whole before anything else
IN_VIEW = 64  # tiles of a level that the view itself may take
TILES_PER_GROUP = 4  # tiles of a group
STRIPS = 64  # blocks of a strip along a level that are kept whole

Item = TypeVar("Item")


class ExportedHead(NamedTuple):
    """A head that is to be kept: where it is, its size, what is shown of it, and whether it has names for positions."""

    trace: str
    layer: int
    head: int
    plan: ZoomPlan
    queries: range
    keys: range
    causal: bool
    texts: bool

    @property
    def path(self) -> str:
        """What the paths of its answers begin with."""
        return f"{self.trace}/{self.layer}/{self.head}"

    @property
    def cells(self) -> int:
        """How many weights it has."""
        return self.plan.queries * self.plan.keys

    @property
    def weights(self) -> str:
        """The path of all its weights."""
        return f"{self.path}/block?i0=0&i1={self.plan.queries}&j0=0&j1={self.plan.keys}&as=npy"


def texts(kept: ExportedHead) -> Iterator[list[str]]:
    """Names along the two sides of a layer, in blocks and in one piece."""
    layer = f"{kept.trace}/{kept.layer}"
    for side, length in (("query", kept.plan.queries), ("key", kept.plan.keys)) if kept.texts else ():
        ends = [(start, min(start + TOKENS, length)) for start in range(0, length, TOKENS)]
        for some in _some(ends, 64):
            yield [f"{layer}/tokens?side={side}&from={start}&to={stop}" for start, stop in some]
        yield [f"{layer}/sections?side={side}", f"{layer}/words?side={side}"]
        yield [f"{layer}/text?side={side}&from=0&to={min(length, MAX_TEXT)}"]


def coarse_levels(kept: ExportedHead) -> Iterator[list[str]]:
    """The levels of few tiles, whole."""
    for z in _levels(kept, few=True):
        yield from chain(strips(kept, z), pictures(kept, z, outward(kept, z)))


def in_view(kept: ExportedHead) -> Iterator[list[str]]:
    """The part that is shown and some of what is around it, at every level at which it is not too much."""
    for z in _levels(kept, few=False):
        inside = [tile for tile in outward(kept, z) if _touches(kept, z, *tile)]
        if len(inside) <= IN_VIEW:
            yield from chain(strips(kept, z), pictures(kept, z, inside))


def about(kept: ExportedHead, pins: tuple[int | None, int | None]) -> Iterator[list[str]]:
    """The head in some numbers, and all its weights; of a long text, what is said of its pinned query and key."""
    yield [f"{kept.path}/profile", f"{kept.path}/scores"]
    if kept.cells <= MAX_SHOWN_CELLS:
        yield [kept.weights]
        return
    for side, line, pin in zip(("query", "key"), ("row", "col"), pins, strict=True):
        if pin is not None:
            links = [f"{kept.path}/links/{side}/{pin}?unit={unit}&most=2000" for unit in ("token", "word")]
            yield [f"{kept.path}/{line}/{pin}", f"{kept.path}/{side}/{pin}", *(links if kept.texts else ())]
    yield [f"{kept.path}/col/0"]


def along(kept: ExportedHead) -> Iterator[list[str]]:
    """The diagonal, where tokens look at those near them: finest first, where it is not too much."""
    for z in reversed(list(_levels(kept, few=False))):
        near = [(y, x) for y, x in outward(kept, z) if y - 1 <= x <= y]
        if len(near) <= IN_VIEW and kept.plan.queries == kept.plan.keys:
            yield from chain(strips(kept, z), pictures(kept, z, near))


def around(kept: ExportedHead) -> Iterator[list[str]]:
    """All levels, each from the view outwards."""
    for z in _levels(kept, few=False):
        yield from chain(strips(kept, z), pictures(kept, z, outward(kept, z)))


def whole(kept: ExportedHead) -> list[str]:
    """All of a head that is not the one shown: pictures, strips and numbers; not its exact weights."""
    some = chain(coarse_levels(kept), around(kept), [[f"{kept.path}/profile", f"{kept.path}/scores"]])
    return list(dict.fromkeys(path for group in some for path in group))


def _levels(kept: ExportedHead, *, few: bool) -> Iterator[int]:
    for z in range(kept.plan.deepest + 1):
        down, across = kept.plan.count_tiles(z)
        if (down * across <= FEW) is few:
            yield z


def outward(kept: ExportedHead, z: int) -> list[tuple[int, int]]:
    """The tiles of a level that are not hidden as a whole, nearest to the middle of the view first."""
    span = TILE_SIZE * kept.plan.stride(z)
    middle = [(side.start + side.stop) / 2 / span for side in (kept.queries, kept.keys)]
    down, across = kept.plan.count_tiles(z)
    offset = kept.plan.keys - kept.plan.queries
    tiles = [
        (y, x)
        for y in range(down)
        for x in range(across)
        if not kept.causal or x * span <= min(kept.plan.queries, (y + 1) * span) - 1 + offset
    ]
    return sorted(tiles, key=lambda tile: hypot(tile[0] + 0.5 - middle[0], tile[1] + 0.5 - middle[1]))


def pictures(kept: ExportedHead, z: int, tiles: Sequence[tuple[int, int]]) -> Iterator[list[str]]:
    """Tiles in groups, each with its means and its maxima; where bins are cells, both are one."""
    channels = ("mean",) if z == kept.plan.deepest else ("mean", "max")
    for some in _some(tiles, TILES_PER_GROUP // len(channels)):
        yield [f"{kept.path}/{z}/{y}/{x}?ch={channel}" for y, x in some for channel in channels]


def strips(kept: ExportedHead, z: int) -> Iterator[list[str]]:
    """What stands beside the map at a level: all of it, or what belongs to the view."""
    span = TILE_SIZE * kept.plan.stride(z)
    for kind, side, count in zip(
        ("entropy", "received"), (kept.queries, kept.keys), kept.plan.count_tiles(z), strict=True
    ):
        blocks = range(count) if count <= STRIPS else range(side.start // span, min(count, -(-side.stop // span)))
        yield [f"{kept.path}/marginal/{kind}/{z}/{block}" for block in blocks]


def _touches(kept: ExportedHead, z: int, y: int, x: int) -> bool:
    """Whether a tile is in view, or would be in a window twice as large."""
    span = TILE_SIZE * kept.plan.stride(z)
    return all(
        place * span < side.stop + len(side) // 2 and side.start - len(side) // 2 < (place + 1) * span
        for place, side in ((y, kept.queries), (x, kept.keys))
    )


def _some(items: Sequence[Item], count: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), count):
        yield items[start : start + count]
