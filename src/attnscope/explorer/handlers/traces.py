"""Handlers of traces and their heads, one method per route.

In: requests that passed the guard. Out: JSON, tiles and floats. A response that depends only on the trace may be cached
forever, because the id of a trace is derived from its content.
Does not know: how anything is computed, access. Memory: one response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from attnscope.atlas import ZoomPlan
from attnscope.atlas.codec import EXACT, PARTIAL, PARTLY_MASKED, Header, pack_floats
from attnscope.errors import MissingExtraError
from attnscope.explorer.analysis import inspection
from attnscope.explorer.analysis.row_report import row_report
from attnscope.explorer.analysis.weight_report import weight_report
from attnscope.explorer.handlers.base import LONG, MAX_TOKEN_LENGTH, Handlers, HeadRef, query_block
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.guard import RequestError
from attnscope.explorer.service.http import (
    BYTES,
    NOT_FOUND,
    path_int,
    query_choice,
    query_int,
    respond,
    respond_json,
)
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.sessions.lazy_session import LazySession, get_session
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.matrix import AttentionMatrix
from attnscope.recording.layers.recorded import Layer
from attnscope.version import __version__

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

ASSETS = {
    "index.html": "text/html; charset=utf-8",
    "explorer.js": "text/javascript; charset=utf-8",
    "explorer.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page_shared.js": "text/javascript; charset=utf-8",
    "page_later.js": "text/javascript; charset=utf-8",
    "survey.html": "text/html; charset=utf-8",
    "survey.js": "text/javascript; charset=utf-8",
    "survey.css": "text/css; charset=utf-8",
    "watch.html": "text/html; charset=utf-8",
    "watch.js": "text/javascript; charset=utf-8",
    "watch.css": "text/css; charset=utf-8",
    "steps.html": "text/html; charset=utf-8",
    "steps.js": "text/javascript; charset=utf-8",
    "steps.css": "text/css; charset=utf-8",
}
"""The files of all pages, and their media types; saved pages and notebooks use explorer.js, the whole explorer."""

PAGES = {"/": "index.html", "/survey": "survey.html", "/watch": "watch.html", "/steps": "steps.html"}
"""Paths that differ from the name of their file."""

MAX_TOKENS = 4096
MAX_CELLS, MAX_SIDE = 65_536, 65_535  # a header has two bytes per side
MAX_SEARCH_LENGTH = 200
MARGINAL_AXES = {"entropy": 0, "received": 1}  # the axis of each marginal


class TraceHandlers(Handlers):
    """Routes of the pages, of traces and of heads."""

    def __init__(
        self,
        library: Library,
        session: ModelSession | LazySession | None,
        workers: WorkerPools,
        assets: Mapping[str, bytes],
    ) -> None:
        super().__init__(library, workers)
        self._session, self._assets = session, assets

    async def page(self, request: Request) -> Response:
        """A page or one of its files; revalidated each time, because the next version has the same names."""
        name = PAGES.get(request.url.path) or request.url.path.removeprefix("/")
        return respond(request, self._assets[name], ASSETS[name], cache="no-cache")

    async def session(self, request: Request) -> Response:
        """The open traces, and what the model can do."""
        session, traces = get_session(self._session), self.library.summaries()
        first = self.library.entry(traces[0]["trace"]) if traces else None
        info = {
            "version": __version__,
            "model": session.name if session is not None else first.trace.model if first is not None else "",
            "has_model": session is not None,
            "model_free": session is not None and session.note is not None,
            "model_note": None if session is None else session.note,
            "max_tokens": 0 if session is None else session.max_tokens,
            "presets": [] if session is None else session.presets,
            "traces": traces,
            "has_baseline": session is not None and session.has_baseline,
            "can_generate": session is not None and session.can_generate,
            "can_ablate": session is not None and session.can_ablate,
            "example": await self.run_quick(request, self._open_example),
            "survey": self.library.survey is not None,
            "watch": self.library.watched is not None,
            "file": None,
        }
        return respond_json(request, info, cache="no-store")

    def _open_example(self) -> str | None:
        try:
            return self.library.example()
        except MissingExtraError:  # the package that opens saved traces is not installed
            return None

    async def meta(self, request: Request) -> Response:
        """A trace and its layers; revalidated each time, because its name may change."""
        return await self.respond_quick(request, self.entry(request).meta, cache="no-cache")

    async def tokens(self, request: Request) -> Response:
        """The texts of some tokens."""
        return await self.token_texts(request, MAX_TOKENS)

    async def sections(self, request: Request) -> Response:
        """Headings and paragraphs along an axis."""
        axis = await self.axis(request)
        return await self.respond_quick(request, lambda: axis.sections)

    async def find(self, request: Request) -> Response:
        """The next occurrence of a text."""
        axis, text = await self.axis(request), request.query_params.get("text", "")
        after = query_int(request, "after", 0)
        backward = query_choice(request, "backward", "0", "1") == "1"
        if not text.strip() or len(text) > MAX_SEARCH_LENGTH:
            raise RequestError(400, f"Expected 1 to {MAX_SEARCH_LENGTH} characters to search for, got {len(text):,}.")
        return await self.respond_quick(request, lambda: axis.find(text, after, backward=backward))

    async def tile(self, request: Request) -> Response:
        """A tile: 204 if all of it is masked, and to be requested again while it is a preview."""
        head = self.head_ref(request)
        plan = ZoomPlan(head.queries, head.keys)
        z = path_int(request, "z", plan.deepest + 1)
        y, x = (path_int(request, name, count) for name, count in zip("yx", plan.count_tiles(z), strict=True))
        channel = query_choice(request, "ch", "mean", "max")
        tile = await self.run_quick(request, lambda: self.library.head(*head).atlas.tile(z, y, x, channel))
        return _respond_tile(request, tile.body, partial=tile.state == "partial", empty=tile.state == "empty")

    async def marginal(self, request: Request) -> Response:
        """The attention received by each key, or the entropy of each query, along an axis of the map."""
        head, kind = self.head_ref(request), request.path_params["kind"]
        if kind not in MARGINAL_AXES:
            raise RequestError(404, NOT_FOUND)
        plan = ZoomPlan(head.queries, head.keys)
        z = path_int(request, "z", plan.deepest + 1)
        block = path_int(request, "block", plan.count_tiles(z)[MARGINAL_AXES[kind]])
        body = await self.run_quick(request, lambda: self.library.head(*head).atlas.marginal(kind, z, block))
        return _respond_tile(request, body, partial=bool(Header.unpack(body).flags & PARTIAL))

    async def status(self, request: Request) -> Response:
        """The progress of the coarse levels of a head."""
        head = self.library.find_open_head(*self.head_ref(request))
        progress = None if head is None else head.atlas.progress()
        coarse = "absent" if progress is None else "ready" if progress >= 1 else "building"
        return respond_json(request, {"coarse": coarse, "progress": progress}, cache="no-store")

    async def row(self, request: Request) -> Response:
        """The weights of a query."""
        head = self.head_ref(request)
        query = path_int(request, "place", head.queries)
        line = await self.run_on_head(request, head, lambda matrix: inspection.row(matrix, query))
        return respond(request, _pack(line.values, level=line.level, y=query), BYTES)

    async def column(self, request: Request) -> Response:
        """The weights on a key."""
        head = self.head_ref(request)
        key = path_int(request, "place", head.keys)
        line = await self.run_on_head(request, head, lambda matrix: inspection.column(matrix, key), slow=True)
        return respond(request, _pack(line.values, level=line.level, y=key), BYTES)

    async def cells(self, request: Request) -> Response:
        """A block of exact weights."""
        head = self.head_ref(request)
        queries, keys = query_block(request, head, MAX_CELLS, MAX_SIDE)
        block = await self.run_on_head(request, head, lambda matrix: inspection.cells(matrix, queries, keys))
        return respond(request, _pack(block, y=queries.start, x=keys.start), BYTES)

    async def query(self, request: Request) -> Response:
        """Statistics of a query."""
        head = self.head_ref(request)
        query = path_int(request, "place", head.queries)
        report = await self.run_on_head(request, head, lambda matrix: inspection.query_report(matrix, query))
        return respond_json(request, report)

    async def key(self, request: Request) -> Response:
        """Statistics of a key."""
        head = self.head_ref(request)
        key = path_int(request, "place", head.keys)
        report = await self.run_on_head(request, head, lambda matrix: inspection.key_report(matrix, key), slow=True)
        return respond_json(request, report)

    async def why(self, request: Request) -> Response:
        """How a weight was computed from its query and key."""
        head, query, key = self._pair(request)
        rotary = head.entry.trace.rotary

        def explain(matrix: AttentionMatrix) -> dict[str, Any]:
            values = head.values()
            return weight_report(matrix, query, key, rotary=rotary, value=None if values is None else values[key])

        return respond_json(request, await self.run_on_head(request, head, explain))

    async def steps(self, request: Request) -> Response:
        """The vectors of a query and of its strongest keys, from which the page computes their weights again."""
        head, query, key = self._pair(request)
        axes = {side: head.entry.axis(head.layer, side) for side in ("query", "key")}

        def text(side: str, position: int) -> str | None:
            axis = axes[side]
            return None if axis is None else axis.texts[position][:MAX_TOKEN_LENGTH]

        def explain(matrix: AttentionMatrix) -> dict[str, Any]:
            report = row_report(matrix, query, key, values=head.values())
            report["text"] = text("query", query)
            for one in report["keys"]:
                one["text"] = text("key", one["position"])
            return report

        return respond_json(request, await self.run_on_head(request, head, explain))

    def _pair(self, request: Request) -> tuple[HeadRef, int, int]:
        """Parse a query and a key of a head whose queries and keys were recorded."""
        head = self.head_ref(request)
        query = query_int(request, "query", 0, head.queries - 1)
        key = query_int(request, "key", 0, head.keys - 1)
        if not isinstance(head.entry.layer(head.layer), Layer):
            raise RequestError(409, "This trace has attention weights without queries and keys, so no scores.")
        return head, query, key

    async def profile(self, request: Request) -> Response:
        """The distances over which a head attends."""
        head = self.head_ref(request)
        if head.entry.layer(head.layer).cross:
            raise RequestError(404, "Queries and keys of cross-attention are from two texts, so there is no distance.")
        return respond_json(request, await self.run_on_head(request, head, inspection.distance_profile, slow=True))

    async def scores(self, request: Request) -> Response:
        """Labels and scores of a head; "pending" while those of a long text are computed.

        Revalidated each time, because the next version may have other labels.
        """
        head = self.head_ref(request)

        def score() -> tuple[list[dict[str, str]], dict[str, float]]:
            return self.library.scores(*head)

        if head.queries <= LONG:
            labels, scores = await self.run_quick(request, score)
        else:
            future = self.workers.submit_background((head.entry.trace_id, *head[1:]), score)
            if not future.done():
                return respond_json(request, {"labels": [], "scores": {}, "pending": True}, cache="no-store")
            labels, scores = future.result()
        return respond_json(request, {"labels": labels, "scores": scores, "pending": False}, cache="no-cache")


def _pack(values: NDArray, *, level: int = 0, y: int, x: int = 0) -> bytes:
    """Pack floats as a body; NaN stands for masked cells."""
    flags = EXACT * (level == 0) | PARTLY_MASKED * bool(numpy.isnan(values).any())
    return pack_floats(values, z=level, y=y, x=x, flags=flags)


def _respond_tile(request: Request, body: bytes, *, partial: bool, empty: bool = False) -> Response:
    """Respond with a tile; a preview is not cached, and an empty tile has no content."""
    if partial:
        return respond(request, body, BYTES, cache="no-store", headers={"retry-after": "1"})
    return respond(request, body, BYTES, status=204 if empty else 200)
