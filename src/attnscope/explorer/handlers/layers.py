"""Handlers of all heads of a layer at once: thumbnails, labels and scores.

In: requests that passed the guard. Out: tile bodies, and JSON. Does not know: how anything is computed.
Memory: one response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.atlas.pyramid import EncodedTile
from attnscope.explorer.analysis.thumbnails import thumbnails
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import Handlers
from attnscope.explorer.service.http import BYTES, query_choice, respond, respond_json
from attnscope.explorer.service.workers import wait_until_done

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SCORES_TIMEOUT_SECONDS = 1.0  # before the response says that scores are pending
PENDING = {
    "scored_queries": 0,
    "num_queries": 0,
    "heads": [],
    "meanings": {},
    "measures": {},
    "pending": True,
}


class LayerHandlers(Handlers):
    """Routes of layers."""

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

    async def heads(self, request: Request) -> Response:
        """Labels and scores of all heads of a layer; "pending" while they are computed.

        Revalidated each time, because the next version may have other labels.
        """
        entry, layer = self.layer(request)
        future = self.workers.submit_background(
            (entry.trace_id, layer, "heads"), lambda: self.library.layer_scores(entry, layer)
        )
        await wait_until_done(future, SCORES_TIMEOUT_SECONDS)
        if not future.done() or future.cancelled():
            return respond_json(request, PENDING, cache="no-store")
        return respond_json(request, {**future.result(), "pending": False}, cache="no-cache")
