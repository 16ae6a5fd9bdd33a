"""What the explorer says about texts and parts of them: tokens, words, what each is linked to, blocks of weights.

In: requests that the guard has let through. Out: JSON, and files of weights. Does not know: how anything is computed.
Memory: an answer at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.errors import Cancelled
from attnscope.explorer.analysis import inspection, links
from attnscope.explorer.analysis.weight_files import label_positions, to_csv, to_npy
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import Handlers, Place, query_block
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import (
    BYTES,
    NOT_FOUND,
    path_int,
    query_choice,
    query_int,
    respond,
    to_json,
)
from attnscope.matrix import AttentionMatrix

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_TOKENS = 2**18
MAX_LINKS, USUAL_LINKS = 4000, 2000
MAX_CELLS = 2**22
CSV = "text/csv; charset=utf-8"


class TextHandlers(Handlers):
    """One method for each address."""

    async def text(self, request: Request) -> Response:
        """Texts of many tokens at once."""
        return respond(request, await self.told_tokens(request, MAX_TOKENS))

    async def words(self, request: Request) -> Response:
        """The first token of each word."""
        axis = await self.axis(request)
        return respond(request, await self.quick(request, lambda: to_json(axis.words)))

    async def links(self, request: Request) -> Response:
        """What a token or a word gives to others, or receives from them."""
        place, side = self.place(request), request.path_params["side"]
        if side not in ("query", "key"):
            raise RequestError(404, NOT_FOUND)
        length = place.queries if side == "query" else place.keys
        at = path_int(request, "place", length)
        by_word = query_choice(request, "unit", "token", "word") == "word"
        most = query_int(request, "most", 1, MAX_LINKS) if "most" in request.query_params else USUAL_LINKS

        def find(matrix: AttentionMatrix) -> bytes:
            linked, others = (links.given, "key") if side == "query" else (links.received, "query")
            span = links.find_span(at, self._words(place, side) if by_word else None, length)
            return to_json(linked(matrix, span, self._words(place, others) if by_word else None, most))

        return respond(request, await self.of_head(request, place, find, slow=side == "key"))

    async def block(self, request: Request) -> Response:
        """A block of exact weights, as a file."""
        place = self.place(request)
        queries, keys = query_block(request, place, MAX_CELLS)
        kind = query_choice(request, "as", "npy", "csv")

        def write(cancelled: CancelCheck) -> bytes:
            matrix = self.library.head(*place).matrix.with_options(should_stop=cancelled)
            weights = inspection.cells(matrix, queries, keys)
            if cancelled():
                raise Cancelled("a block of weights was being written that nobody waits for")
            if kind == "npy":
                return to_npy(weights)
            rows, columns = (
                label_positions(queries, self._texts(place, "query")),
                label_positions(keys, self._texts(place, "key")),
            )
            return to_csv(weights, rows, columns, cancelled)

        body = await self.patient(request, write)
        attached = {"content-disposition": f'attachment; filename="weights.{kind}"'}
        return respond(request, body, CSV if kind == "csv" else BYTES, cache="no-store", headers=attached)

    def _texts(self, place: Place, side: str) -> list[str] | None:
        axis = place.entry.axis(place.layer, side)
        return None if axis is None else axis.texts

    def _words(self, place: Place, side: str) -> list[int]:
        return self.known_axis(place.entry, place.layer, side).words
