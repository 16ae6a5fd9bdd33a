"""Handlers of all heads of layers at once: links, thumbnails, labels and scores.

In: requests that passed the guard. Out: tile bodies, and JSON. Does not know: how anything is computed.
Memory: one response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.atlas.pyramid import EncodedTile
from attnscope.explorer.analysis.head_ranking import rank_heads
from attnscope.explorer.analysis.thumbnails import thumbnails
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import Handlers, query_range, query_runs
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import BYTES, query_choice, respond, respond_json, to_json
from attnscope.explorer.service.workers import wait_until_done

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SCORES_TIMEOUT_SECONDS = 1.0  # before the response says that scores are pending
MAX_QUICK_CELLS = 2**26  # of rows that are searched without yielding to tiles
PENDING = {
    "scored_queries": 0,
    "num_queries": 0,
    "heads": [],
    "meanings": {},
    "measures": {},
    "complete": False,
    "pending": True,
}


class LayerHandlers(Handlers):
    """Routes of layers."""

    async def find_heads(self, request: Request) -> Response:
        """How strongly each head links some queries to some keys, for all layers or some of them."""
        entry = self.entry(request)
        shapes = [layer.shape for layer in entry.trace.layers.values()]
        layers = query_range(request, "l0", "l1", len(shapes)) or range(len(shapes))
        queries = query_range(request, "q0", "q1", max(shape[2] for shape in shapes))
        keys = query_runs(request, "runs", max(shape[3] for shape in shapes))
        if keys is None and (some := query_range(request, "k0", "k1", max(shape[3] for shape in shapes))) is not None:
            keys = [some]
        if queries is None and keys is None:
            raise RequestError(400, "Expected queries q0 and q1, keys k0 and k1 or runs, or both.")

        def rank(cancelled: CancelCheck) -> bytes:
            return to_json(rank_heads(map(entry.matrix, layers), layers.start, queries, keys, cancelled))

        # Weights of single keys need the log-sum-exp of their whole rows.
        cells = sum(shapes[at][1] * shapes[at][3] * len(queries or range(shapes[at][2])) for at in layers)
        if cells > MAX_QUICK_CELLS:
            return respond(request, await self.run_slow(request, rank, self.workers.search))
        return respond(request, await self.run_cancellable(request, self.workers.search, rank))

    async def thumbs(self, request: Request) -> Response:
        """Thumbnails of all heads of a layer."""
        entry, layer = self.layer(request)
        channel = query_choice(request, "ch", "mean", "max")

        def make(cancelled: CancelCheck) -> EncodedTile:
            matrix = entry.matrix(layer).with_options(should_stop=cancelled)
            return self.library.cache.get(
                ("thumbs", entry.trace_id, layer), lambda: thumbnails(matrix, layer), lambda bodies: bodies.nbytes
            )

        bodies = await self.run_slow(request, make)
        return respond(request, getattr(bodies, channel), BYTES)

    async def preview(self, request: Request) -> Response:
        """A thumbnail of one head, to show while its tiles are computed."""
        head = self.head_ref(request)
        channel = query_choice(request, "ch", "mean", "max")
        bodies = await self.run_quick(request, lambda: self.library.preview(*head))
        return respond(request, getattr(bodies, channel), BYTES)

    async def heads(self, request: Request) -> Response:
        """Labels and scores of all heads of a layer; "pending" while they are computed.

        Revalidated each time, because the next version may have other labels.
        """
        entry, layer = self.layer(request)
        scores = await self.run_quick(request, lambda: self.library.start_scoring(entry))
        if scores.layer(layer) is None:
            future = self.workers.submit_background(
                (entry.trace_id, layer, "heads"), lambda: self.library.score_first(entry, layer)
            )
            await wait_until_done(future, SCORES_TIMEOUT_SECONDS)
            if future.done() and not future.cancelled():
                future.result()  # raises its error
        found = scores.layer(layer)
        if found is None:
            return respond_json(request, PENDING, cache="no-store")
        return respond_json(request, {**found, "pending": False}, cache="no-cache" if found["complete"] else "no-store")

    async def opening(self, request: Request) -> Response:
        """Where to begin: the most distinctive head with its strongest link, and the best head of each label."""
        entry = self.entry(request)
        scores = await self.run_quick(request, lambda: self.library.start_scoring(entry))
        return respond_json(request, scores.opening(), cache="no-store")
