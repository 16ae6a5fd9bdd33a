"""Handlers of texts and parts of them: tokens, words, links, blocks of weights.

In: requests that passed the guard. Out: JSON, and files of weights. Does not know: how anything is computed.
Memory: one response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.errors import Cancelled
from attnscope.explorer.analysis import inspection, links
from attnscope.explorer.analysis.weight_files import label_positions, to_csv, to_npy
from attnscope.explorer.cancellation import CancelCheck
from attnscope.explorer.handlers.base import Handlers, HeadRef, query_block
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
MAX_LINKS, DEFAULT_LINKS = 4000, 2000
MAX_CELLS = 2**22
CSV = "text/csv; charset=utf-8"


class TextHandlers(Handlers):
    """Routes of texts, words, links and blocks of weights."""

    async def text(self, request: Request) -> Response:
        """The texts of many tokens."""
        return await self.token_texts(request, MAX_TOKENS)

    async def words(self, request: Request) -> Response:
        """The first token of each word."""
        axis = await self.axis(request)
        return await self.respond_quick(request, lambda: axis.words)

    async def links(self, request: Request) -> Response:
        """What a token or word attends to, or what attends to it."""
        head, side = self.head_ref(request), request.path_params["side"]
        if side not in ("query", "key"):
            raise RequestError(404, NOT_FOUND)
        length = head.queries if side == "query" else head.keys
        position = path_int(request, "place", length)
        by_word = query_choice(request, "unit", "token", "word") == "word"
        most = query_int(request, "most", 1, MAX_LINKS) if "most" in request.query_params else DEFAULT_LINKS

        def find(matrix: AttentionMatrix) -> bytes:
            find_links, others = (links.attended_keys, "key") if side == "query" else (links.attending_queries, "query")
            span = links.find_span(position, self._words(head, side) if by_word else None, length)
            return to_json(find_links(matrix, span, self._words(head, others) if by_word else None, most))

        return respond(request, await self.run_on_head(request, head, find, slow=side == "key"))

    async def block(self, request: Request) -> Response:
        """A block of exact weights, as a file."""
        head = self.head_ref(request)
        queries, keys = query_block(request, head, MAX_CELLS)
        kind = query_choice(request, "as", "npy", "csv")

        def write(cancelled: CancelCheck) -> bytes:
            matrix = self.library.head(*head).matrix.with_options(should_stop=cancelled)
            weights = inspection.cells(matrix, queries, keys)
            if cancelled():
                raise Cancelled("writing a block of weights was cancelled")
            if kind == "npy":
                return to_npy(weights)
            rows = label_positions(queries, self._texts(head, "query"))
            return to_csv(weights, rows, label_positions(keys, self._texts(head, "key")), cancelled)

        body = await self.run_slow(request, write)
        headers = {"content-disposition": f'attachment; filename="weights.{kind}"'}
        return respond(request, body, CSV if kind == "csv" else BYTES, cache="no-store", headers=headers)

    def _texts(self, head: HeadRef, side: str) -> list[str] | None:
        axis = head.entry.axis(head.layer, side)
        return None if axis is None else axis.texts

    def _words(self, head: HeadRef, side: str) -> list[int]:
        return self.require_axis(head.entry, head.layer, side).words
