"""What all answers begin with: which trace, head or text an address names, and where the work for it is done.

In: requests that the guard has let through. Out: entries of the library, or `RequestError`; what functions return.
Does not know: what is asked about them. Memory: nothing.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from attnscope.atlas.atlas import FOREGROUND
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.library.library import Axis, Entry, Library
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import NOT_FOUND, path_int, query_choice, query_int, to_json
from attnscope.explorer.service.workers import WorkerPools
from attnscope.matrix import AttentionMatrix

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_TOKEN_LENGTH = 200
LONG = 16_384  # queries from which on columns and scores take seconds
IDENTITY = re.compile(r"[0-9a-f]{16,64}")

Answer = TypeVar("Answer")


class Place(NamedTuple):
    """A head of a trace, as an address names it."""

    entry: Entry
    layer: int
    head: int

    @property
    def queries(self) -> int:
        """How many rows it has."""
        return self.entry.layer(self.layer).shape[2]

    @property
    def keys(self) -> int:
        """How many columns it has."""
        return self.entry.layer(self.layer).shape[3]


class Handlers:
    """A library, and the lanes of threads that work on it."""

    def __init__(self, library: Library, work: WorkerPools) -> None:
        self.library, self.work = library, work

    def entry(self, request: Request) -> Entry:
        """The trace that an address names."""
        identity = request.path_params["trace"]
        if not IDENTITY.fullmatch(identity):
            raise RequestError(404, NOT_FOUND)
        entry = self.library.entry(identity)
        if entry is None:
            raise RequestError(
                404, f"The trace {identity[:12]} is not open here; open its folder, or type its text again."
            )
        return entry

    def layer(self, request: Request) -> tuple[Entry, int]:
        """The layer that an address names."""
        entry = self.entry(request)
        return entry, path_int(request, "layer", len(entry.trace))

    def place(self, request: Request) -> Place:
        """The head that an address names."""
        entry, layer = self.layer(request)
        return Place(entry, layer, path_int(request, "head", entry.layer(layer).shape[1]))

    async def axis(self, request: Request) -> Axis:
        """The tokens along the side that an address names."""
        entry, layer = self.layer(request)
        side = query_choice(request, "side", "query", "key")
        return await self.quick(request, lambda: self.known_axis(entry, layer, side))

    def known_axis(self, entry: Entry, layer: int, side: str) -> Axis:
        """The tokens along a side of a layer."""
        axis = entry.axis(layer, side)
        if axis is None:
            raise RequestError(404, "The positions of this layer are no tokens, or their texts are not known.")
        return axis

    async def told_tokens(self, request: Request, most: int) -> bytes:
        """Texts of tokens as JSON, each cut where it is longer than anybody reads."""
        axis = await self.axis(request)
        start = query_int(request, "from", 0, len(axis.texts))
        stop = min(query_int(request, "to", start), len(axis.texts))
        if stop - start > most:
            raise RequestError(400, f"At most {most:,} tokens are told at once, and {stop - start:,} were asked for.")
        some = axis.texts[start:stop]
        return await self.quick(request, lambda: to_json([text[:MAX_TOKEN_LENGTH] for text in some]))

    async def quick(self, request: Request, work: Callable[[], Answer]) -> Answer:
        """What a function returns, computed beside the event loop."""
        return await self.work.done(self.work.quick, request.receive, work)

    async def of_head(
        self, request: Request, place: Place, work: Callable[[AttentionMatrix], Answer], *, slow: bool = False
    ) -> Answer:
        """What a function finds in the matrix of a head."""
        lane = self.work.slow if slow and place.queries > LONG else self.work.quick
        return await self.work.done(lane, request.receive, lambda: work(self.library.head(*place).matrix))

    async def until_disconnect(self, request: Request, lane: Executor, work: Callable[[CancelCheck], Answer]) -> Answer:
        """What a function returns that asks whether it is still wanted: not once the client or the explorer goes."""
        gone = threading.Event()
        try:
            return await self.work.done(
                lane, request.receive, lambda: work(lambda: gone.is_set() or self.library.closing.is_set())
            )
        finally:
            gone.set()

    async def patient(self, request: Request, work: Callable[[CancelCheck], Answer]) -> Answer:
        """What a function returns that takes seconds: it gives way to tiles when it asks whether it is still wanted."""

        def polite(cancelled: CancelCheck) -> Answer:
            def asked() -> bool:
                FOREGROUND.give_way()
                return cancelled()

            return work(asked)

        return await self.until_disconnect(request, self.work.slow, polite)


def query_block(request: Request, place: Place, most: int, longest: int | None = None) -> tuple[range, range]:
    """The queries and keys between which weights are asked for: at least one cell, and at most so many."""
    queries, keys = (
        range(query_int(request, f"{letter}0", 0, size), query_int(request, f"{letter}1", 0, size))
        for letter, size in (("i", place.queries), ("j", place.keys))
    )
    if not 0 < len(queries) * len(keys) <= most or (longest and max(len(queries), len(keys)) > longest):
        sides = f", and at most {longest:,} of a row or a column" if longest else ""
        raise RequestError(
            400,
            f"1 to {most:,} cells are told at once{sides}; {len(queries):,} x {len(keys):,} were asked for.",
        )
    return queries, keys
