"""Which responses a static page includes, by priority.

In: a head, the range that is shown, and the pins. Out: paths in groups, as the page requests them: coarse levels first,
then what is in view, then its surroundings. Does not know: responses, files. Memory: one group at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import hypot
from typing import NamedTuple, TypeVar

from attnscope.atlas import TILE_SIZE, ZoomPlan

TOKENS_PER_REQUEST = 1024  # of the page
MAX_TEXT_TOKENS = 2**18  # of one request of the text view
MAX_OTHER_CELLS, MAX_SHOWN_CELLS = 2**16, 2**20  # of a head with exact weights: others, and the one shown
COARSE_TILES = 16  # of a level that is included completely, before anything else
MAX_VIEW_TILES = 64  # of a level
TILES_PER_GROUP = 4
MAX_MARGINAL_BLOCKS = 64  # of a level whose marginals are included completely
MAX_PICTURE_POSITIONS = 512  # of a layer whose every query and key has a map over an image
MAPS_PER_GROUP = 8

Item = TypeVar("Item")


class ExportedHead(NamedTuple):
    """A head to export: its index, its size, the range shown, and whether its token texts are known."""

    trace: str
    layer: int
    number: int
    plan: ZoomPlan
    queries: range
    keys: range
    causal: bool
    has_texts: bool

    @property
    def path(self) -> str:
        """The prefix of its paths."""
        return f"{self.trace}/{self.layer}/{self.number}"

    @property
    def cells(self) -> int:
        """The number of its weights."""
        return self.plan.queries * self.plan.keys

    @property
    def weights(self) -> str:
        """The path of all its weights."""
        return f"{self.path}/block?i0=0&i1={self.plan.queries}&j0=0&j1={self.plan.keys}&as=npy"


def token_texts(head: ExportedHead) -> Iterator[list[str]]:
    """Token texts of both axes of a layer, in blocks and as a whole."""
    layer = f"{head.trace}/{head.layer}"
    for side, length in (("query", head.plan.queries), ("key", head.plan.keys)) if head.has_texts else ():
        ends = [(start, min(start + TOKENS_PER_REQUEST, length)) for start in range(0, length, TOKENS_PER_REQUEST)]
        for some in _split(ends, 64):
            yield [f"{layer}/tokens?side={side}&from={start}&to={stop}" for start, stop in some]
        yield [f"{layer}/sections?side={side}", f"{layer}/words?side={side}"]
        yield [f"{layer}/text?side={side}&from=0&to={min(length, MAX_TEXT_TOKENS)}"]


def coarse_levels(head: ExportedHead) -> Iterator[list[str]]:
    """The levels with few tiles, completely."""
    for z in _levels(head, coarse=True):
        yield from chain(marginals(head, z), tile_paths(head, z, order_tiles(head, z)))


def in_view(head: ExportedHead) -> Iterator[list[str]]:
    """The range that is shown, with a margin, at every level where it is not too large."""
    for z in _levels(head, coarse=False):
        inside = [tile for tile in order_tiles(head, z) if _is_near_view(head, z, *tile)]
        if len(inside) <= MAX_VIEW_TILES:
            yield from chain(marginals(head, z), tile_paths(head, z, inside))


def statistics(head: ExportedHead, pins: tuple[int | None, int | None]) -> Iterator[list[str]]:
    """Statistics of the head, and all its weights; of a long text, only those of the pinned query and key."""
    yield [f"{head.path}/profile", f"{head.path}/scores"]
    if head.cells <= MAX_SHOWN_CELLS:
        yield [head.weights]
        return
    for side, line, pin in zip(("query", "key"), ("row", "col"), pins, strict=True):
        if pin is not None:
            links = [f"{head.path}/links/{side}/{pin}?unit={unit}&most=2000" for unit in ("token", "word")]
            yield [f"{head.path}/{line}/{pin}", f"{head.path}/{side}/{pin}", *(links if head.has_texts else ())]
    yield [f"{head.path}/col/0"]


def image_maps(head: ExportedHead, image: int, pins: tuple[int | None, int | None]) -> Iterator[list[str]]:
    """The picture view of a layer: the photo, its patches, and maps: those of the pins first."""
    layer = f"{head.trace}/{head.layer}"
    picture = f"{layer}/picture?image={image}&of="
    yield [f"{head.trace}/photo?image={image}"]
    yield [f"{layer}/patches?image={image}", f"{layer}/sinks?image={image}", f"{picture}received"]
    sides = ("query", pins[0], head.plan.queries), ("key", pins[1], head.plan.keys)
    for kind, pin, size in (*sides, ("rollout", pins[0], 1)):
        first = [0] if pin is None else [pin, 0]  # 0: a class token is there
        every = range(size) if size <= MAX_PICTURE_POSITIONS else ()
        for some in _split(list(dict.fromkeys([*first, *every])), MAPS_PER_GROUP):
            yield [f"{picture}{kind}&p0={position}&p1={position + 1}" for position in some]


def diagonal(head: ExportedHead) -> Iterator[list[str]]:
    """The diagonal, where tokens attend to their neighbours: finest level first, if it is not too large."""
    for z in reversed(list(_levels(head, coarse=False))):
        near = [(y, x) for y, x in order_tiles(head, z) if y - 1 <= x <= y]
        if len(near) <= MAX_VIEW_TILES and head.plan.queries == head.plan.keys:
            yield from chain(marginals(head, z), tile_paths(head, z, near))


def all_levels(head: ExportedHead) -> Iterator[list[str]]:
    """All levels, each from the view outwards."""
    for z in _levels(head, coarse=False):
        yield from chain(marginals(head, z), tile_paths(head, z, order_tiles(head, z)))


def whole_head(head: ExportedHead) -> list[str]:
    """All tiles, marginals and statistics of another head, without its exact weights."""
    groups = chain(coarse_levels(head), all_levels(head), [[f"{head.path}/profile", f"{head.path}/scores"]])
    return list(dict.fromkeys(path for group in groups for path in group))


def _levels(head: ExportedHead, *, coarse: bool) -> Iterator[int]:
    for z in range(head.plan.deepest + 1):
        down, across = head.plan.count_tiles(z)
        if (down * across <= COARSE_TILES) is coarse:
            yield z


def order_tiles(head: ExportedHead, z: int) -> list[tuple[int, int]]:
    """The tiles of a level that are not completely masked, nearest to the middle of the view first."""
    span = TILE_SIZE * head.plan.stride(z)
    middle = [(side.start + side.stop) / 2 / span for side in (head.queries, head.keys)]
    down, across = head.plan.count_tiles(z)
    offset = head.plan.keys - head.plan.queries
    tiles = [
        (y, x)
        for y in range(down)
        for x in range(across)
        if not head.causal or x * span <= min(head.plan.queries, (y + 1) * span) - 1 + offset
    ]
    return sorted(tiles, key=lambda tile: hypot(tile[0] + 0.5 - middle[0], tile[1] + 0.5 - middle[1]))


def tile_paths(head: ExportedHead, z: int, tiles: Sequence[tuple[int, int]]) -> Iterator[list[str]]:
    """Tiles in groups, with means and maxima; at the finest level both are equal."""
    channels = ("mean",) if z == head.plan.deepest else ("mean", "max")
    for some in _split(tiles, TILES_PER_GROUP // len(channels)):
        yield [f"{head.path}/{z}/{y}/{x}?ch={channel}" for y, x in some for channel in channels]


def marginals(head: ExportedHead, z: int) -> Iterator[list[str]]:
    """The marginals of a level: all, or those of the view."""
    span = TILE_SIZE * head.plan.stride(z)
    for kind, side, count in zip(
        ("entropy", "received"), (head.queries, head.keys), head.plan.count_tiles(z), strict=True
    ):
        blocks = (
            range(count)
            if count <= MAX_MARGINAL_BLOCKS
            else range(side.start // span, min(count, -(-side.stop // span)))
        )
        yield [f"{head.path}/marginal/{kind}/{z}/{block}" for block in blocks]


def _is_near_view(head: ExportedHead, z: int, y: int, x: int) -> bool:
    """Whether a tile overlaps a view twice as large."""
    span = TILE_SIZE * head.plan.stride(z)
    return all(
        place * span < side.stop + len(side) // 2 and side.start - len(side) // 2 < (place + 1) * span
        for place, side in ((y, head.queries), (x, head.keys))
    )


def _split(items: Sequence[Item], count: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), count):
        yield items[start : start + count]
