"""What the page shows first, computed before there is a page.

The page of a trace opens on its most distinctive head, whole. In: a library. Out: that head is chosen, and its
preview, its tiles and its strips are in the cache, unless that takes too long. Does not know: HTTP.
Memory: that of the library.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product

from attnscope.atlas import ZoomPlan
from attnscope.errors import AttnScopeError
from attnscope.explorer.library.library import Entry, Library

MAX_SECONDS = 3.0
POLL_SECONDS = 0.02
MAP_PIXELS = 720  # of the map of a whole head in a usual window, along each axis


def prepare_opening(library: Library, seconds: float = MAX_SECONDS) -> None:
    """Compute what the page of the first trace draws first, until `seconds` have passed.

    Labels and all other heads follow in the background. What fails here fails again for the page, which shows why.
    """
    end, entry = time.monotonic() + seconds, library.first_listed()
    if entry is None:
        return
    with suppress(AttnScopeError):
        head = _wait_for_head(library, entry, end)
        if head is None:
            return
        library.preview(entry, *head)
        atlas, causal = library.head(entry, *head).atlas, entry.is_causal(head[0])
        for tile in tiles_of_whole(atlas.plan, causal=causal):
            if time.monotonic() > end:
                return
            atlas.tile(*tile, "mean")
        atlas.marginal("received", 0, 0)


def _wait_for_head(library: Library, entry: Entry, end: float) -> tuple[int, int] | None:
    """The layer and head that the page opens on; None if they are not known in time."""
    scores = library.start_scoring(entry)
    while time.monotonic() < end:
        found = scores.opening()
        if found["opening"] is not None:
            return found["opening"]["layer"], found["opening"]["head"]
        if not found["pending"]:
            break
        time.sleep(POLL_SECONDS)
    return None


def tiles_of_whole(plan: ZoomPlan, *, causal: bool) -> Iterator[tuple[int, int, int]]:
    """Yield the tiles of a whole head in a usual window: level, row and column.

    >>> list(tiles_of_whole(ZoomPlan(8192, 8192), causal=True))
    [(1, 0, 0), (1, 1, 0), (1, 1, 1)]
    """
    level = plan.deepest
    while level > 0 and plan.stride(level) * MAP_PIXELS < max(plan.queries, plan.keys):
        level -= 1
    down, across = plan.count_tiles(level)
    for row, column in product(range(down), range(across)):
        last_query, first_key = plan.edges(level, row, column)[0][-1] - 1, plan.edges(level, row, column)[1][0]
        if not (causal and first_key > last_query + plan.keys - plan.queries):
            yield level, row, column
