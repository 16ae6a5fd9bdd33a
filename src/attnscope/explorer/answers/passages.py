"""What the explorer says about texts and parts of them: tokens, words, what each is linked to, blocks of weights.

In: requests that the guard has let through. Out: JSON, and files of weights. Does not know: how anything is computed.
Memory: an answer at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.errors import Cancelled
from attnscope.explorer.answers.asking import Asked, Asking, Place, asked_block
from attnscope.explorer.findings import inspection, links
from attnscope.explorer.findings.block_files import as_csv, as_npy, names_of
from attnscope.explorer.service.exchange import (
    BYTES,
    NOTHING_HERE,
    answered,
    as_json,
    asked_number,
    asked_word,
    path_number,
)
from attnscope.explorer.service.guard import Refused
from attnscope.matrix import AttentionMatrix

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_TOKENS = 2**18
MAX_LINKS, USUAL_LINKS = 4000, 2000
MAX_CELLS = 2**22
CSV = "text/csv; charset=utf-8"


class Passages(Asking):
    """One method for each address."""

    async def text(self, request: Request) -> Response:
        """Texts of many tokens at once."""
        return answered(request, await self.told_tokens(request, MAX_TOKENS))

    async def words(self, request: Request) -> Response:
        """The first token of each word."""
        axis = await self.axis(request)
        return answered(request, await self.quick(request, lambda: as_json(axis.words)))

    async def links(self, request: Request) -> Response:
        """What a token or a word gives to others, or receives from them."""
        place, side = self.place(request), request.path_params["side"]
        if side not in ("query", "key"):
            raise Refused(404, NOTHING_HERE)
        length = place.queries if side == "query" else place.keys
        at = path_number(request, "place", length)
        by_word = asked_word(request, "unit", "token", "word") == "word"
        most = asked_number(request, "most", 1, MAX_LINKS) if "most" in request.query_params else USUAL_LINKS

        def find(matrix: AttentionMatrix) -> bytes:
            linked, others = (links.given, "key") if side == "query" else (links.received, "query")
            span = links.span_of(at, self._words(place, side) if by_word else None, length)
            return as_json(linked(matrix, span, self._words(place, others) if by_word else None, most))

        return answered(request, await self.of_head(request, place, find, slow=side == "key"))

    async def block(self, request: Request) -> Response:
        """A block of exact weights, as a file."""
        place = self.place(request)
        queries, keys = asked_block(request, place, MAX_CELLS)
        kind = asked_word(request, "as", "npy", "csv")

        def write(cancelled: Asked) -> bytes:
            matrix = self.library.head(*place).matrix.with_options(should_stop=cancelled)
            weights = inspection.cells(matrix, queries, keys)
            if cancelled():
                raise Cancelled("a block of weights was being written that nobody waits for")
            if kind == "npy":
                return as_npy(weights)
            rows, columns = names_of(queries, self._texts(place, "query")), names_of(keys, self._texts(place, "key"))
            return as_csv(weights, rows, columns, cancelled)

        body = await self.patient(request, write)
        attached = {"content-disposition": f'attachment; filename="weights.{kind}"'}
        return answered(request, body, CSV if kind == "csv" else BYTES, cache="no-store", headers=attached)

    def _texts(self, place: Place, side: str) -> list[str] | None:
        axis = place.entry.axis(place.layer, side)
        return None if axis is None else axis.texts

    def _words(self, place: Place, side: str) -> list[int]:
        return self.known_axis(place.entry, place.layer, side).words
