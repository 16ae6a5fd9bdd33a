"""What all handlers share: which trace, head or text a path names, and which pool runs the work.

In: requests that passed the guard. Out: entries of the library, or `RequestError`; results of functions.
Does not know: the routes. Memory: nothing.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from torch import Tensor

from attnscope.atlas.atlas import FOREGROUND
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.library.library import Entry, Library, TokenAxis
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import IMMUTABLE, NOT_FOUND, path_int, query_choice, query_int, respond, to_json
from attnscope.explorer.service.workers import WorkerPools
from attnscope.matrix import AttentionMatrix
from attnscope.recording.layers.recorded import Layer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_TOKEN_LENGTH = 200
LONG = 16_384  # queries from which on columns and scores take seconds
MAX_RUNS = 256
RUN = re.compile(r"([0-9]{1,7})-([0-9]{1,7})")
TRACE_ID = re.compile(r"[0-9a-f]{16,64}")

Result = TypeVar("Result")


class HeadRef(NamedTuple):
    """A head of a trace, as a path names it."""

    entry: Entry
    layer: int
    head: int

    @property
    def queries(self) -> int:
        """The number of queries."""
        return self.entry.layer(self.layer).shape[2]

    @property
    def keys(self) -> int:
        """The number of keys."""
        return self.entry.layer(self.layer).shape[3]

    def values(self) -> Tensor | None:
        """The values of the head, (keys, dim); None if they were not recorded."""
        layer = self.entry.layer(self.layer)
        value = layer.merge_calls().value if isinstance(layer, Layer) else None
        return None if value is None else value[0, self.head * value.shape[1] // layer.shape[1]]


class Handlers:
    """The base class of handlers: a library, and the pools that compute from it."""

    def __init__(self, library: Library, workers: WorkerPools) -> None:
        self.library, self.workers = library, workers

    def entry(self, request: Request) -> Entry:
        """Find the trace that a path names; raises a 404 if it is not open."""
        trace_id = request.path_params["trace"]
        if not TRACE_ID.fullmatch(trace_id):
            raise RequestError(404, NOT_FOUND)
        entry = self.library.entry(trace_id)
        if entry is None:
            raise RequestError(
                404, f"The trace {trace_id[:12]} is not open here; open its folder, or type its text again."
            )
        return entry

    def layer(self, request: Request) -> tuple[Entry, int]:
        """Find the layer that a path names."""
        entry = self.entry(request)
        return entry, path_int(request, "layer", len(entry.trace))

    def head_ref(self, request: Request) -> HeadRef:
        """Find the head that a path names."""
        entry, layer = self.layer(request)
        return HeadRef(entry, layer, path_int(request, "head", entry.layer(layer).shape[1]))

    async def axis(self, request: Request) -> TokenAxis:
        """Find the tokens along the side that a request names."""
        entry, layer = self.layer(request)
        side = query_choice(request, "side", "query", "key")
        return await self.run_quick(request, lambda: self.require_axis(entry, layer, side))

    def require_axis(self, entry: Entry, layer: int, side: str) -> TokenAxis:
        """Return the tokens along a side of a layer; raises a 404 if their texts are not known."""
        axis = entry.axis(layer, side)
        if axis is None:
            raise RequestError(404, "The token texts of this layer are not known.")
        return axis

    async def token_texts(self, request: Request, max_tokens: int) -> Response:
        """Respond with the texts of a range of tokens; very long tokens are cut."""
        axis = await self.axis(request)
        start = query_int(request, "from", 0, len(axis.texts))
        stop = min(query_int(request, "to", start), len(axis.texts))
        if stop - start > max_tokens:
            raise RequestError(400, f"Expected at most {max_tokens:,} tokens, got {stop - start:,}.")
        texts = axis.texts[start:stop]
        return await self.respond_quick(request, lambda: [text[:MAX_TOKEN_LENGTH] for text in texts])

    async def respond_quick(
        self, request: Request, function: Callable[[], object], *, cache: str = IMMUTABLE
    ) -> Response:
        """Respond with the result of a quick function as JSON."""
        return respond(request, await self.run_quick(request, lambda: to_json(function())), cache=cache)

    async def run_quick(self, request: Request, function: Callable[[], Result]) -> Result:
        """Run a function in the pool for quick work."""
        return await self.workers.run(self.workers.quick, request.receive, function)

    async def run_on_head(
        self, request: Request, head: HeadRef, function: Callable[[AttentionMatrix], Result], *, slow: bool = False
    ) -> Result:
        """Run a function of the matrix of a head; `slow` for work that takes seconds on a long text."""
        pool = self.workers.slow if slow and head.queries > LONG else self.workers.quick
        return await self.workers.run(pool, request.receive, lambda: function(self.library.head(*head).matrix))

    async def run_cancellable(
        self, request: Request, pool: Executor, function: Callable[[CancelCheck], Result]
    ) -> Result:
        """Run a function with a check that returns True once the client disconnects or the explorer closes."""
        disconnected = threading.Event()
        try:
            return await self.workers.run(
                pool,
                request.receive,
                lambda: function(lambda: disconnected.is_set() or self.library.closing.is_set()),
            )
        finally:
            disconnected.set()

    async def run_slow(
        self, request: Request, function: Callable[[CancelCheck], Result], pool: Executor | None = None
    ) -> Result:
        """Run a function that takes seconds; at each cancellation check it yields to tiles."""

        def run_yielding(cancelled: CancelCheck) -> Result:
            def check() -> bool:
                FOREGROUND.give_way()
                return cancelled()

            return function(check)

        return await self.run_cancellable(request, pool or self.workers.slow, run_yielding)


def query_range(request: Request, start: str, stop: str, below: int) -> range | None:
    """Parse a half-open range of the query string; None if both ends are absent."""
    if start not in request.query_params and stop not in request.query_params:
        return None
    first = query_int(request, start, 0, below - 1)
    return range(first, query_int(request, stop, first + 1, below))


def query_runs(request: Request, name: str, below: int) -> list[range] | None:
    """Parse several half-open ranges of the query string, such as 5-8,11-14, in order; None if they are absent."""
    text = request.query_params.get(name)
    if text is None:
        return None
    found = [RUN.fullmatch(part) for part in text.split(",", MAX_RUNS)]
    runs = [range(int(part[1]), int(part[2])) for part in found if part is not None]
    ends = [end for run in runs for end in (run.start, run.stop)]
    if len(runs) < len(found) or len(runs) > MAX_RUNS or not all(runs) or ends != sorted(ends) or ends[-1] > below:
        raise RequestError(400, f"Expected {name} as at most {MAX_RUNS} ranges in order, got {text[:20]!r}.")
    return runs


def query_block(request: Request, head: HeadRef, max_cells: int, max_side: int | None = None) -> tuple[range, range]:
    """Parse the queries and keys of a block of weights, of at least one cell."""
    queries, keys = (
        range(query_int(request, f"{letter}0", 0, size), query_int(request, f"{letter}1", 0, size))
        for letter, size in (("i", head.queries), ("j", head.keys))
    )
    if not 0 < len(queries) * len(keys) <= max_cells or (max_side and max(len(queries), len(keys)) > max_side):
        sides = f" with sides of at most {max_side:,}" if max_side else ""
        raise RequestError(400, f"Expected 1 to {max_cells:,} cells{sides}, got {len(queries):,} x {len(keys):,}.")
    return queries, keys
