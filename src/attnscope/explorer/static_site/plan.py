"""What a site stores of a trace, and how many bytes that takes at most.

In: the shapes of a trace, and the heads to publish. Out: levels of tiles, and sizes, before anything is computed.
Does not know: files, weights. Memory: O(heads).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from attnscope.atlas import TILE_SIZE, ZoomPlan
from attnscope.errors import SettingError
from attnscope.explorer.static_site.score_rules import score_rule
from attnscope.formatting import format_bytes
from attnscope.recording import Trace
from attnscope.recording.layers.recorded import Layer

MAX_TILES = (
    16  # of a level that is stored although a browser could compute it: a view of the whole head needs no q and k
)
HEADER_BYTES = 32
SMALL_BYTES = 2**16  # statistics, thumbnails and index of a head, and its share of the text, at most
SITE_BYTES = 2**21  # scripts, style and pages
HEADS = re.compile(r"L(\d{1,5})(?:-L(\d{1,5})|H(\d{1,5}))?", re.IGNORECASE)

HeadId = tuple[int, int]
"""The index of a layer in the trace, and of a head in the layer."""


class HeadSize(NamedTuple):
    """The most bytes that a head takes, and what its time depends on."""

    num_bytes: int
    cells: int
    tokens: int
    tiles: int
    """Those that are stored."""


def stored_levels(plan: ZoomPlan) -> list[int]:
    """The levels whose tiles are stored, coarsest first; a browser computes the others.

    >>> stored_levels(ZoomPlan(8192, 8192)), stored_levels(ZoomPlan(131_072, 131_072))
    ([0, 1, 2], [0, 1, 2, 3, 4])
    """

    def is_small(z: int) -> bool:
        down, across = plan.count_tiles(z)
        return down * across <= MAX_TILES

    return [z for z in range(plan.deepest + 1) if z in plan.coarse_levels or is_small(z)]


def head_size(trace: Trace, layer: int, head: int) -> HeadSize:
    """The size of a head with its share of the keys, if no tile can be compressed."""
    recorded = trace.layer(layer)
    _, heads, queries, keys = recorded.shape
    plan = ZoomPlan(queries, keys)
    tiles = sum(down * across for down, across in map(plan.count_tiles, stored_levels(plan)))
    num_bytes = SMALL_BYTES + 2 * tiles * (HEADER_BYTES + TILE_SIZE**2) + 16 * queries + 20 * keys
    if score_rule(recorded, head) is None:
        num_bytes += 4 * queries * keys
    elif isinstance(recorded, Layer):
        call = recorded.merge_calls()
        key_share = call.key[0, :1].nbytes * call.key.shape[1] // heads
        num_bytes += call.query[0, 0].nbytes + key_share
    return HeadSize(num_bytes, queries * keys, keys, tiles)


def select_heads(trace: Trace, names: Sequence[str]) -> list[HeadId]:
    """The heads that `L12`, `L0-L5` and `L12H3` name, or all heads of the trace if there are no names.

    Raises:
        SettingError: The trace has no such head.
    """
    every = [(layer, head) for layer in range(len(trace)) for head in range(trace.layer(layer).shape[1])]
    if not names:
        return every
    chosen = {one for name in names for one in _parse(trace, name)}
    return [one for one in every if one in chosen]


def _parse(trace: Trace, name: str) -> list[HeadId]:
    found = HEADS.fullmatch(name)
    if found is None:
        raise SettingError(f"publish: expected heads such as L12H3, L12 or L0-L5, got {name!r}")
    first = int(found[1])
    last = first if found[2] is None else int(found[2])
    if not first <= last < len(trace):
        raise SettingError(f"publish: {name} is not in this trace, which has layers 0 to {len(trace) - 1}")
    if found[3] is None:
        return [(layer, head) for layer in range(first, last + 1) for head in range(trace.layer(layer).shape[1])]
    numbers = list(trace.layer(first).heads)  # a trace may have only some heads of the model
    if int(found[3]) not in numbers:
        known = ", ".join(f"H{number}" for number in numbers)
        raise SettingError(f"publish: {name} is not in this trace, which has the heads {known} in layer {first}")
    return [(first, numbers.index(int(found[3])))]


def parse_bytes(text: str) -> int:
    """Parse a number of bytes.

    >>> parse_bytes("2GB"), parse_bytes("1.5 MiB"), parse_bytes("300")
    (2000000000, 1572864, 300)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?", text.strip())
    if found is None or (found[3] and not found[2]):
        raise SettingError(f"publish: expected a size such as 2GB, 500MB or 1.5GiB, got {text!r}")
    power = " KMGT".index(found[2].upper() or " ")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def check_budget(trace: Trace, heads: Sequence[HeadId], budget: int | None) -> int:
    """The most bytes that the site takes.

    Raises:
        SettingError: That is over the budget; the message says what fits.
    """
    sizes = [head_size(trace, *head).num_bytes for head in heads]
    total = SITE_BYTES + sum(sizes)
    if budget is None or total <= budget:
        return total
    taken, fitting = SITE_BYTES, 0
    while taken + sizes[fitting] <= budget:
        taken += sizes[fitting]
        fitting += 1
    fits = "not even one head fits"
    if fitting:
        layer, head = heads[fitting - 1]
        name = f"L{layer}H{trace.layer(layer).heads[head]}"
        fits = f"the first {fitting:,} of {len(heads):,} heads fit, up to {name}: choose heads with --heads"
    raise SettingError(
        f"publish: the site takes at most {format_bytes(total)}, which is over the budget of {format_bytes(budget)}; "
        f"{fits}, or give --budget {total / 1e9 + 0.005:.2f}GB"
    )
