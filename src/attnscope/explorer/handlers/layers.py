"""What the explorer says about all heads of a layer at once: small pictures, and what each head does.

In: requests that the guard has let through. Out: bodies of tiles, and JSON. Does not know: how anything is computed.
Memory: an answer at a time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from attnscope.atlas.pyramid import EncodedTile
from attnscope.explorer.analysis.thumbnails import thumbnails
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import Handlers
from attnscope.explorer.service.http import BYTES, query_choice, respond, to_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MOMENT = 1.0  # seconds that scores are waited for before it is said that they come later
PENDING = {"queries": 0, "of": 0, "heads": [], "meanings": {}, "measures": {}, "pending": True}


class LayerHandlers(Handlers):
    """One method for each address."""

    async def thumbs(self, request: Request) -> Response:
        """All heads of a layer, small."""
        entry, layer = self.layer(request)
        channel = query_choice(request, "ch", "mean", "max")

        def make(cancelled: CancelCheck) -> EncodedTile:
            matrix = entry.matrix(layer).with_options(should_stop=cancelled)
            return self.library.cache.get(
                ("thumbs", entry.identity, layer), lambda: thumbnails(matrix, layer), lambda bodies: bodies.nbytes
            )

        bodies = await self.patient(request, make)
        return respond(request, getattr(bodies, channel), BYTES)

    async def heads(self, request: Request) -> Response:
        """What each head of a layer does; once it has been computed.

        Asked about anew each time, for the next version may have other words.
        """
        entry, layer = self.layer(request)
        waiting = self.work.aside((entry.identity, layer, "heads"), lambda: self.library.layer_scores(entry, layer))
        await asyncio.wait({asyncio.wrap_future(waiting)}, timeout=MOMENT)
        if not waiting.done() or waiting.cancelled():
            return respond(request, to_json(PENDING), cache="no-store")
        return respond(request, to_json({**waiting.result(), "pending": False}), cache="no-cache")
