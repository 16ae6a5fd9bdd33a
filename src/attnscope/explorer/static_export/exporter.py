"""The exporter of static pages: one HTML file that shows a head without AttnScope and without a network.

The page is the explorer's own, with a bundle of responses: as much of the head that is shown as fits, coarse levels
first, then other heads completely. In: a trace, or a request. Out: HTML, at most 12 MB.
Does not know: handlers. Memory: three times the page.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote

import numpy

from attnscope.atlas import ZoomPlan
from attnscope.atlas.codec import EXACT, PARTIAL, PARTLY_MASKED, Header, pack_floats
from attnscope.errors import AttnScopeError, SettingError
from attnscope.explorer.handlers.base import Handlers
from attnscope.explorer.html_page import make_page
from attnscope.explorer.library.library import Library
from attnscope.explorer.service.guard import App
from attnscope.explorer.service.http import BYTES, JSON, query_int, respond, to_json
from attnscope.explorer.service.in_process import send_request
from attnscope.explorer.service.workers import WorkerPools, until_disconnect
from attnscope.explorer.static_export import selection
from attnscope.explorer.static_export.bundle import Bundle
from attnscope.explorer.static_export.selection import ExportedHead

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BUNDLE_SIZE = 11_500_000  # characters
RESERVED_SIZE = MAX_BUNDLE_SIZE // 100  # for the session, which lists the exported heads
RETRY_SECONDS = 0.2  # while a response is a preview
MAX_OVERVIEW_CELLS = 2**28  # of a trace whose layers are all included in the overview
TOKENS_PER_PREDICTION = 4096
MAX_PREDICTED_TOKENS = 16_384
PREDICTION_RETRIES = 15  # a few seconds
MAX_FRAGMENT_LENGTH = 6000
NO_MODEL = {
    "has_model": False,
    "model_free": False,
    "model_note": None,
    "max_tokens": 0,
    "presets": [],
    "has_baseline": False,
    "can_generate": False,
    "can_ablate": False,
    "example": None,
}

POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'"
)
BODY = """<script type="application/json" id="attnscope-answers">{responses}</script>
    <script type="module">{script}</script>"""
FRAGMENT = re.compile(r"#1/[^/?]*/L\d+H\d+/(map|text|heads|picture)(?:\?(.*))?")


class ExportHandlers(Handlers):
    """The route of a static page."""

    def __init__(self, library: Library, workers: WorkerPools, assets: Mapping[str, bytes]) -> None:
        super().__init__(library, workers)
        self._assets = assets

    async def page(self, request: Request) -> Response:
        """A static page of a head that opens with the current view."""
        ref = self.head_ref(request)
        sides = ref.queries, ref.keys
        shown = [
            range(query_int(request, f"{letter}0", 0, size - 1), query_int(request, f"{letter}1", 1, size))
            for letter, size in zip("ij", sides, strict=True)
        ]
        pins = [
            query_int(request, name, 0, size - 1) if name in request.query_params else None
            for name, size in zip(("query", "key"), sides, strict=True)
        ]
        view = View(shown[0], shown[1], (pins[0], pins[1]), request.query_params.get("at", ""))
        page = export_page(request.app, self._assets, self.library, ref.entry.trace_id, (ref.layer, ref.head), view)
        found = await until_disconnect(request.receive, page)
        return respond(request, found.html, "text/html; charset=utf-8", cache="no-store")


class StaticPage(NamedTuple):
    """A page, and how many heads it has."""

    html: bytes
    num_heads: int


class View(NamedTuple):
    """The range, pins and fragment that a page opens with."""

    queries: range
    keys: range
    pins: tuple[int | None, int | None] = (None, None)
    at: str = ""


async def export_page(
    app: App, assets: Mapping[str, bytes], library: Library, trace: str, head: tuple[int, int], view: View
) -> StaticPage:
    """Make the static page of a head from the responses of an app."""
    entry = library.entry(trace)
    assert entry is not None, "the caller has found it"
    meta = {**await request_json(app, f"{trace}/meta"), "unmasked": None, "origin": None}
    bundle, trace_heads = Bundle(MAX_BUNDLE_SIZE - RESERVED_SIZE), _TraceHeads(trace, meta["layers"], view)
    await _add_responses(bundle, {f"{trace}/meta": to_json(meta)})
    images = [one["image"] for one in meta["images"] if head[0] in one["layers"]]
    await _add_shown_head(app, bundle, trace_heads.select(*head), view, images)
    heads = [head, *await _add_other_heads(app, bundle, trace_heads, head)]
    await _add(app, bundle, trace_heads.layers(head[0]))
    for layer in dict.fromkeys(layer for layer, _ in heads):
        await _add(app, bundle, selection.token_texts(trace_heads.select(layer, 0)))
    for other in heads[1:]:
        if trace_heads.select(*other).cells <= selection.MAX_OTHER_CELLS:
            await _add(app, bundle, [[trace_heads.select(*other).weights]])
    await _add_responses(bundle, {f"{trace}/opening": to_json(keep_heads(await request_opening(app, trace), heads))})
    predictions = await _request_predictions(app, trace, entry.summary()["tokens"])
    if predictions is not None:
        await _add_responses(bundle, {f"{trace}/predictions": to_json(predictions)})
    bundle.limit = MAX_BUNDLE_SIZE
    exported = {"model": meta["model"], "traces": [entry.summary()], "file": {"heads": sorted(heads)}}
    await _add_responses(bundle, {"session": to_json({**await request_json(app, "session"), **NO_MODEL, **exported})})
    title, opening = f"{meta['name']} - AttnScope", make_fragment(view.at, trace, head)
    return StaticPage(await asyncio.to_thread(render_page, assets, bundle.text(), title, opening), len(heads))


async def _add_shown_head(app: App, bundle: Bundle, shown: ExportedHead, view: View, images: list[int]) -> None:
    """Add the head that is shown, with the images that its layer has."""
    coarsest = f"{shown.path}/0/0/0?ch=mean"
    await _add_responses(bundle, {coarsest: await request_body(app, coarsest, required=True)})
    await _add(app, bundle, selection.token_texts(shown))
    await _add(app, bundle, selection.coarse_levels(shown))
    await _add(app, bundle, selection.in_view(shown))
    await _add(app, bundle, selection.statistics(shown, view.pins))
    for image in images:
        await _add(app, bundle, selection.image_maps(shown, image, view.pins))
    await _add(app, bundle, selection.diagonal(shown))
    await _add(app, bundle, selection.all_levels(shown))


async def _add_other_heads(
    app: App, bundle: Bundle, trace_heads: _TraceHeads, head: tuple[int, int]
) -> list[tuple[int, int]]:
    """Add other heads completely while they fit, and return which."""
    taken, found = bundle.used, []
    for other in trace_heads.others(head):
        if bundle.remaining < taken // 2:  # they are about as large as the first, and take as long
            break
        if not await _add_responses(bundle, await _request_all(app, selection.whole_head(trace_heads.select(*other)))):
            break
        found.append(other)
    return found


async def request_opening(app: App, trace: str) -> dict[str, Any]:
    """Request where to begin; long texts may be scored in part."""
    while True:
        found = await request_json(app, f"{trace}/opening")
        if found["opening"] is not None or not found["pending"]:
            break
        await asyncio.sleep(RETRY_SECONDS)
    return found


def keep_heads(opening: dict[str, Any], heads: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Drop the findings of heads that are not exported."""
    cards = [card for card in opening["cards"] if (card["layer"], card["head"]) in heads]
    known = [one for one in [opening["opening"], *cards] if one and (one["layer"], one["head"]) in heads]
    return {**opening, "opening": next(iter(known), None), "cards": cards, "pending": False}


async def _request_predictions(app: App, trace: str, tokens: int) -> dict[str, Any] | None:
    """Request the predictions of all tokens; None if there are none, or if they are not known soon."""
    found: list[Any] = []
    if tokens > MAX_PREDICTED_TOKENS:
        return None
    for start in range(0, tokens, TOKENS_PER_PREDICTION):
        path = f"{trace}/predictions?from={start}&to={min(start + TOKENS_PER_PREDICTION, tokens)}"
        part = await request_json(app, path)
        for _ in range(PREDICTION_RETRIES):
            if not part["pending"]:
                break
            await asyncio.sleep(RETRY_SECONDS)
            part = await request_json(app, path)
        if part["pending"] or part["problem"] is not None:
            return None
        found += part["tokens"]
    return {"pending": False, "problem": None, "tokens": found}


class _TraceHeads(NamedTuple):
    """The heads of a trace that can be exported."""

    trace: str
    about: list[dict[str, Any]]
    view: View

    def select(self, layer: int, head: int) -> ExportedHead:
        """Return a head, with the view clipped to its size."""
        about = self.about[layer]
        plan = ZoomPlan(about["queries"], about["keys"])
        rows, columns = (
            range(min(side.start, size - 1), min(side.stop, size))
            for side, size in ((self.view.queries, plan.queries), (self.view.keys, plan.keys))
        )
        return ExportedHead(self.trace, layer, head, plan, rows, columns, about["causal"], about["has_texts"])

    def others(self, head: tuple[int, int]) -> list[tuple[int, int]]:
        """Return all other heads, nearest layer first."""
        every = [(layer, number) for layer, about in enumerate(self.about) for number in range(about["heads"])]
        every.remove(head)
        return sorted(every, key=lambda one: (abs(one[0] - head[0]), abs(one[1] - head[1])))

    def layers(self, own: int) -> Iterable[list[str]]:
        """Yield the overview of all layers, or of a long text that of the layer shown."""
        cells = sum(about["heads"] * about["queries"] * about["keys"] for about in self.about)
        for layer in range(len(self.about)) if cells <= MAX_OVERVIEW_CELLS else [own]:
            start = f"{self.trace}/{layer}"
            yield [f"{start}/thumbs?ch=max", f"{start}/thumbs?ch=mean", f"{start}/heads"]


async def _add(app: App, bundle: Bundle, groups: Iterable[list[str]]) -> None:
    """Request groups of paths and add them, until one does not fit."""
    for group in groups:
        if not await _add_responses(
            bundle, await _request_all(app, [path for path in group if _bundle_path(path) not in bundle])
        ):
            return


async def _add_responses(bundle: Bundle, responses: Mapping[str, bytes | None]) -> bool:
    """Add responses, in a thread, because compression would block the event loop."""
    return await asyncio.to_thread(bundle.add, responses)


async def _request_all(app: App, paths: list[str]) -> dict[str, bytes | None]:
    """Request paths, without those that fail."""
    found = {path: await request_body(app, path) for path in paths}
    return {
        _bundle_path(path): _to_cells(body) if "/block?" in path else body
        for path, body in found.items()
        if body != b""
    }


async def request_json(app: App, path: str) -> dict[str, Any]:
    return json.loads(await request_body(app, path, required=True) or b"{}")


def _bundle_path(path: str) -> str:
    """Return the path that the page requests; it takes any cells from all weights of a head."""
    return path.partition("/block?")[0] + "/cells" if "/block?" in path else path


def _to_cells(body: bytes | None) -> bytes:
    """Convert all weights of a head from NPY to the body of a cells response."""
    weights = numpy.load(io.BytesIO(body or b""))
    return pack_floats(weights, z=0, y=0, x=0, flags=EXACT | PARTLY_MASKED * bool(numpy.isnan(weights).any()))


async def request_body(app: App, path: str, *, required: bool = False) -> bytes | None:
    """Request a path until the response is final; None has no content, empty bytes stand for an error."""
    while True:
        async with send_request(app, path) as response:
            status, media, body = response.status, response.media, await response.read()
        if status == 204:
            return None
        if status != 200:
            if required or status not in (400, 404):
                raise AttnScopeError(f"cannot save the page: {json.loads(body)['error']}")
            return b""
        if not _is_preview(path, media, body):
            return body
        await asyncio.sleep(RETRY_SECONDS)


def _is_preview(path: str, media: str, body: bytes) -> bool:
    """Whether a later response will be better; thumbnails are marked as partial, but final."""
    if media == JSON:
        return body.endswith(b'"pending":true}')
    final = any(part in path for part in ("/thumbs?", "/block?"))
    return media == BYTES and not final and bool(Header.unpack(body).flags & PARTIAL)


def make_fragment(at: str, trace: str, head: tuple[int, int]) -> str:
    """Make the fragment that the page opens with, for an exported trace and head.

    >>> make_fragment("#1/0123456789abcdef/L1H2/text?pin=q3&unmasked=1", "f" * 16, (1, 2))
    '#1/ffffffffffffffff/L1H2/text?pin=q3'
    """
    found = FRAGMENT.fullmatch(at) if len(at) <= MAX_FRAGMENT_LENGTH else None
    view, rest = (found[1], found[2] or "") if found else ("map", "")
    pairs = [
        (name, value)
        for name, value in parse_qsl(rest)
        if name not in ("unmasked", "abl", "how") and (name == "note" or ":" not in value)
    ]
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe=',')}" for name, value in pairs)
    return f"#1/{trace}/L{head[0]}H{head[1]}/{view}{'?' if query else ''}{query}"


def render_page(assets: Mapping[str, bytes], responses: str, title: str, at: str) -> bytes:
    """Render the page as HTML; its policy allows only the explorer's own script, by hash."""
    script, style = (assets[name].decode("utf-8") for name in ("explorer.js", "explorer.css"))
    script = re.sub(r"<(?=!--|/?script)", r"\\x3c", script, flags=re.IGNORECASE)
    if re.search(r"</style|<!--", style, re.IGNORECASE):
        raise SettingError("cannot save the page: its style sheet contains </style or <!--; build the page again")
    return make_page(
        title=title,
        policy=POLICY.format(script=_hash(script), style=_hash(style)),
        attributes=f'data-attnscope="file" data-at="{html.escape(at)}"',
        head=f"<style>{style}</style>",
        body=BODY.format(responses=responses, script=script),
    ).encode("utf-8", "replace")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
