"""What the explorer says about traces, one method for each address.

In: requests that the guard has let through. Out: JSON, tiles and floats. An answer that follows from the trace alone
may be kept for ever, for a trace is named by its content.
Does not know: how anything is computed, who may ask. Memory: an answer at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from attnscope.atlas import ZoomPlan
from attnscope.atlas.codec import EXACT, PARTIAL, PARTLY_MASKED, Header, pack_floats
from attnscope.errors import MissingExtraError
from attnscope.explorer.analysis import inspection
from attnscope.explorer.handlers.base import LONG, Handlers, query_block
from attnscope.explorer.library.library import Library
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
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.sessions.lazy_session import LazySession, get_session
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.version import __version__

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

ASSETS = {
    "index.html": "text/html; charset=utf-8",
    "explorer.js": "text/javascript; charset=utf-8",
    "explorer.css": "text/css; charset=utf-8",
    "survey.html": "text/html; charset=utf-8",
    "survey.js": "text/javascript; charset=utf-8",
    "survey.css": "text/css; charset=utf-8",
}
"""The files of the two pages, and what they are."""

PAGES = {"/": "index.html", "/survey": "survey.html"}
"""Addresses that are not called as their files are."""

MAX_TOKENS = 4096
MAX_CELLS, MAX_SIDE = 65_536, 65_535  # two bytes of a header hold a side
MAX_SEARCH_LENGTH = 200
SIDES = {"entropy": 0, "received": 1}  # which side of the picture a border stands at


class TraceHandlers(Handlers):
    """One method for each address."""

    def __init__(
        self, library: Library, stage: ModelSession | LazySession | None, work: WorkerPools, assets: Mapping[str, bytes]
    ) -> None:
        super().__init__(library, work)
        self._stage, self._assets = stage, assets

    async def page(self, request: Request) -> Response:
        """The page and its files; asked about anew each time, for the next version has the same names."""
        name = PAGES.get(request.url.path) or request.url.path.removeprefix("/")
        return respond(request, self._assets[name], ASSETS[name], cache="no-cache")

    async def session(self, request: Request) -> Response:
        """What there is to see, and whether sentences can be typed."""
        stage, traces = get_session(self._stage), self.library.summaries()
        first = self.library.entry(traces[0]["trace"]) if traces else None
        about = {
            "version": __version__,
            "model": stage.name if stage is not None else first.trace.model if first is not None else "",
            "live": stage is not None,
            "limit": 0 if stage is None else stage.limit,
            "presets": [] if stage is None else stage.presets,
            "traces": traces,
            "untrained": stage is not None and stage.twins,
            "generates": stage is not None and stage.generates,
            "ablates": stage is not None and stage.ablates,
            "example": await self.quick(request, self._example),
            "survey": self.library.survey is not None,
            "file": None,
        }
        return respond(request, to_json(about), cache="no-store")

    def _example(self) -> str | None:
        try:
            return self.library.example()
        except MissingExtraError:  # what opens a trace on disk is not installed
            return None

    async def meta(self, request: Request) -> Response:
        """A trace and its layers; asked about anew each time, for people may name it anew."""
        entry = self.entry(request)
        return respond(request, to_json(await self.quick(request, entry.meta)), cache="no-cache")

    async def tokens(self, request: Request) -> Response:
        """Texts of tokens."""
        return respond(request, await self.told_tokens(request, MAX_TOKENS))

    async def sections(self, request: Request) -> Response:
        """Names along a text."""
        axis = await self.axis(request)
        return respond(request, to_json(await self.quick(request, lambda: axis.sections)))

    async def find(self, request: Request) -> Response:
        """The next place of a text."""
        axis, text = await self.axis(request), request.query_params.get("text", "")
        after = query_int(request, "after", 0)
        backward = query_choice(request, "backward", "0", "1") == "1"
        if not text.strip() or len(text) > MAX_SEARCH_LENGTH:
            raise RequestError(400, f"Search for 1 to {MAX_SEARCH_LENGTH} characters.")
        found = await self.quick(request, lambda: axis.find(text, after, backward=backward))
        return respond(request, to_json(found))

    async def tile(self, request: Request) -> Response:
        """A part of the picture; nothing where the mask allows nothing, and to be asked again while it is a preview."""
        place = self.place(request)
        plan = ZoomPlan(place.queries, place.keys)
        z = path_int(request, "z", plan.deepest + 1)
        y, x = (path_int(request, name, count) for name, count in zip("yx", plan.count_tiles(z), strict=True))
        channel = query_choice(request, "ch", "mean", "max")
        tile = await self.quick(request, lambda: self.library.head(*place).atlas.tile(z, y, x, channel))
        return _numbers(request, tile.body, partial=tile.state == "partial", empty=tile.state == "empty")

    async def marginal(self, request: Request) -> Response:
        """What keys receive, or how queries spread, along the border of the picture."""
        place, kind = self.place(request), request.path_params["kind"]
        if kind not in SIDES:
            raise RequestError(404, NOT_FOUND)
        plan = ZoomPlan(place.queries, place.keys)
        z = path_int(request, "z", plan.deepest + 1)
        block = path_int(request, "block", plan.count_tiles(z)[SIDES[kind]])
        body = await self.quick(request, lambda: self.library.head(*place).atlas.marginal(kind, z, block))
        return _numbers(request, body, partial=bool(Header.unpack(body).flags & PARTIAL))

    async def status(self, request: Request) -> Response:
        """How far the coarse picture of a head has come."""
        head = self.library.opened(*self.place(request))
        progress = None if head is None else head.atlas.progress()
        coarse = "absent" if progress is None else "ready" if progress >= 1 else "building"
        return respond(request, to_json({"coarse": coarse, "progress": progress}), cache="no-store")

    async def row(self, request: Request) -> Response:
        """What a query gives."""
        place = self.place(request)
        query = path_int(request, "place", place.queries)
        line = await self.of_head(request, place, lambda matrix: inspection.row(matrix, query))
        return respond(request, _floats(line.values, level=line.level, y=query), BYTES)

    async def column(self, request: Request) -> Response:
        """What a key receives."""
        place = self.place(request)
        key = path_int(request, "place", place.keys)
        line = await self.of_head(request, place, lambda matrix: inspection.column(matrix, key), slow=True)
        return respond(request, _floats(line.values, level=line.level, y=key), BYTES)

    async def cells(self, request: Request) -> Response:
        """A block of exact weights."""
        place = self.place(request)
        queries, keys = query_block(request, place, MAX_CELLS, MAX_SIDE)
        block = await self.of_head(request, place, lambda matrix: inspection.cells(matrix, queries, keys))
        return respond(request, _floats(block, y=queries.start, x=keys.start), BYTES)

    async def query(self, request: Request) -> Response:
        """A query in some numbers."""
        place = self.place(request)
        query = path_int(request, "place", place.queries)
        report = await self.of_head(request, place, lambda matrix: inspection.query_report(matrix, query))
        return respond(request, to_json(report))

    async def key(self, request: Request) -> Response:
        """A key in some numbers."""
        place = self.place(request)
        key = path_int(request, "place", place.keys)
        report = await self.of_head(request, place, lambda matrix: inspection.key_report(matrix, key), slow=True)
        return respond(request, to_json(report))

    async def profile(self, request: Request) -> Response:
        """How far a head looks."""
        place = self.place(request)
        if place.entry.layer(place.layer).cross:
            raise RequestError(
                404, "Queries and keys of this layer are of two texts, between which there is no distance."
            )
        report = await self.of_head(request, place, inspection.distance_profile, slow=True)
        return respond(request, to_json(report))

    async def scores(self, request: Request) -> Response:
        """What a head does, in words and numbers; of a long text, once it has been computed.

        Asked about anew each time, for the next version may have other words.
        """
        place = self.place(request)

        def score() -> tuple[list[dict[str, str]], dict[str, float]]:
            return self.library.scores(*place)

        if place.queries <= LONG:
            labels, scores = await self.quick(request, score)
        else:
            waiting = self.work.aside((place.entry.identity, *place[1:]), score)
            if not waiting.done():
                return respond(request, to_json({"labels": [], "scores": {}, "pending": True}), cache="no-store")
            labels, scores = waiting.result()
        told = {"labels": labels, "scores": scores, "pending": False}
        return respond(request, to_json(told), cache="no-cache")


def _floats(values: NDArray, *, level: int = 0, y: int, x: int = 0) -> bytes:
    """A body of floats; NaN among them is what the mask hides."""
    flags = EXACT * (level == 0) | PARTLY_MASKED * bool(numpy.isnan(values).any())
    return pack_floats(values, z=level, y=y, x=x, flags=flags)


def _numbers(request: Request, body: bytes, *, partial: bool, empty: bool = False) -> Response:
    """A part of a picture: to be asked again while it is a preview, and no content where the mask allows nothing."""
    if partial:
        return respond(request, body, BYTES, cache="no-store", headers={"retry-after": "1"})
    return respond(request, body, BYTES, status=204 if empty else 200)
