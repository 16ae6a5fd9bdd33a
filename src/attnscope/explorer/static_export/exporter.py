"""A head as a page in one file, which shows it without AttnScope and without a network.

The page is the explorer's own, with answers of the explorer packed into it: of the head that is shown as much as fits,
from far to near, then other heads whole. In: a trace, or a request. Out: HTML, at most 12 MB.
Does not know: how anything is answered. Memory: the page, three times while it is put together.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote

import numpy

from attnscope.atlas import ZoomPlan
from attnscope.atlas.codec import EXACT, PARTIAL, PARTLY_MASKED, Header, pack_floats
from attnscope.errors import AttnScopeError, SettingError
from attnscope.explorer.handlers.base import Handlers
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

LIMIT = 11_500_000  # letters of answers in a page
RESERVED = LIMIT // 100  # of them for what is known at the end alone: which heads there are
AGAIN = 0.2  # seconds until what is being computed is asked for once more
OVERVIEW = 2**28  # cells of a trace of which all layers are told at a glance
MAX_FRAGMENT_LENGTH = 2000
NO_MODEL = {
    "live": False,
    "limit": 0,
    "presets": [],
    "untrained": False,
    "generates": False,
    "ablates": False,
    "example": None,
}

POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'"
)
PAGE = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta http-equiv="Content-Security-Policy" content="{policy}">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="light dark">
    <meta name="referrer" content="no-referrer">
    <title>{title}</title>
    <link rel="icon" href="data:,">
    <style>{style}</style>
  </head>
  <body>
    <div id="explorer" class="explorer" data-attnscope="file" data-at="{at}"><noscript>{without}</noscript></div>
    <script type="application/json" id="attnscope-answers">{answers}</script>
    <script type="module">{script}</script>
  </body>
</html>
"""
WITHOUT = "AttnScope draws attention in the browser and needs JavaScript."
ADDRESS = re.compile(r"#1/[^/?]*/L\d+H\d+/(map|text|heads)(?:\?(.*))?")


class ExportHandlers(Handlers):
    """The address of a page in one file."""

    def __init__(self, library: Library, work: WorkerPools, assets: Mapping[str, bytes]) -> None:
        super().__init__(library, work)
        self._assets = assets

    async def page(self, request: Request) -> Response:
        """A page of a head that opens with what is shown now."""
        place = self.place(request)
        sides = place.queries, place.keys
        shown = [
            range(query_int(request, f"{letter}0", 0, size - 1), query_int(request, f"{letter}1", 1, size))
            for letter, size in zip("ij", sides, strict=True)
        ]
        pins = [
            query_int(request, name, 0, size - 1) if name in request.query_params else None
            for name, size in zip(("query", "key"), sides, strict=True)
        ]
        view = View(shown[0], shown[1], (pins[0], pins[1]), request.query_params.get("at", ""))
        making = export_page(
            request.app, self._assets, self.library, place.entry.identity, (place.layer, place.head), view
        )
        body = await until_disconnect(request.receive, making)
        return respond(request, body, "text/html; charset=utf-8", cache="no-store")


class View(NamedTuple):
    """What a page opens with."""

    queries: range
    keys: range
    pins: tuple[int | None, int | None] = (None, None)
    at: str = ""


async def export_page(
    app: App, assets: Mapping[str, bytes], library: Library, trace: str, head: tuple[int, int], view: View
) -> bytes:
    """The page of a head, from the answers of an app."""
    entry = library.entry(trace)
    assert entry is not None, "whoever asks has looked it up"
    meta = {**await _about_all(app, f"{trace}/meta"), "what_if": None, "origin": None}
    pack, chosen = Bundle(LIMIT - RESERVED), _TraceHeads(trace, meta["layers"], view)
    await _pack(pack, {f"{trace}/meta": to_json(meta)})
    await _fill(app, pack, chosen.kept(*head), view)
    heads = [head, *await _others(app, pack, chosen, head)]
    await _add(app, pack, chosen.layers(head[0]))
    for layer in dict.fromkeys(layer for layer, _ in heads):
        await _add(app, pack, selection.texts(chosen.kept(layer, 0)))
    for other in heads[1:]:
        if chosen.kept(*other).cells <= selection.SHORT:
            await _add(app, pack, [[chosen.kept(*other).weights]])
    pack.limit = LIMIT
    held = {"model": meta["model"], "traces": [entry.summary()], "file": {"heads": sorted(heads)}}
    await _pack(pack, {"session": to_json({**await _about_all(app, "session"), **NO_MODEL, **held})})
    title, opening = f"{meta['name']} - AttnScope", make_fragment(view.at, trace, head)
    return await asyncio.to_thread(render_page, assets, pack.text(), title, opening)


async def _fill(app: App, pack: Bundle, kept: ExportedHead, view: View) -> None:
    """Add the head that is shown."""
    whole = f"{kept.path}/0/0/0?ch=mean"
    await _pack(pack, {whole: await _answer(app, whole, needed=True)})
    await _add(app, pack, selection.texts(kept))
    await _add(app, pack, selection.coarse_levels(kept))
    await _add(app, pack, selection.in_view(kept))
    await _add(app, pack, selection.about(kept, view.pins))
    await _add(app, pack, selection.along(kept))
    await _add(app, pack, selection.around(kept))


async def _others(app: App, pack: Bundle, chosen: _TraceHeads, head: tuple[int, int]) -> list[tuple[int, int]]:
    """Add other heads, each whole, as long as they fit; and say which."""
    taken, found = pack.used, []
    for other in chosen.others(head):
        if pack.left < taken // 2:  # they are about as large as this one, and take as long
            break
        if not await _pack(pack, await _answers(app, selection.whole(chosen.kept(*other)))):
            break
        found.append(other)
    return found


class _TraceHeads(NamedTuple):
    """The heads of a trace, as far as they may be kept."""

    trace: str
    about: list[dict[str, Any]]
    view: View

    def kept(self, layer: int, head: int) -> ExportedHead:
        """A head, at the place that is shown, or as a whole where it is of another size."""
        about = self.about[layer]
        plan = ZoomPlan(about["queries"], about["keys"])
        rows, columns = (
            range(min(side.start, size - 1), min(side.stop, size))
            for side, size in ((self.view.queries, plan.queries), (self.view.keys, plan.keys))
        )
        return ExportedHead(self.trace, layer, head, plan, rows, columns, about["causal"], about["texts"])

    def others(self, head: tuple[int, int]) -> list[tuple[int, int]]:
        """All other heads, nearest first: of the same layer, then of the layers around it."""
        every = [(layer, number) for layer, about in enumerate(self.about) for number in range(about["heads"])]
        every.remove(head)
        return sorted(every, key=lambda one: (abs(one[0] - head[0]), abs(one[1] - head[1])))

    def layers(self, own: int) -> Iterable[list[str]]:
        """Layers at a glance: all, or of a long text the one that is shown."""
        cells = sum(about["heads"] * about["queries"] * about["keys"] for about in self.about)
        for layer in range(len(self.about)) if cells <= OVERVIEW else [own]:
            start = f"{self.trace}/{layer}"
            yield [f"{start}/thumbs?ch=max", f"{start}/thumbs?ch=mean", f"{start}/heads"]


async def _add(app: App, pack: Bundle, groups: Iterable[list[str]]) -> None:
    """Ask for groups of answers and add them, until one does not fit."""
    for group in groups:
        if not await _pack(pack, await _answers(app, [path for path in group if _name(path) not in pack])):
            return


async def _pack(pack: Bundle, answers: Mapping[str, bytes | None]) -> bool:
    """Add answers; beside the loop, for others are answered meanwhile."""
    return await asyncio.to_thread(pack.add, answers)


async def _answers(app: App, paths: list[str]) -> dict[str, bytes | None]:
    """What an app answers, without what it refuses."""
    found = {path: await _answer(app, path) for path in paths}
    return {_name(path): _cells(body) if "/block?" in path else body for path, body in found.items() if body != b""}


async def _about_all(app: App, path: str) -> dict[str, Any]:
    return json.loads(await _answer(app, path, needed=True) or b"{}")


def _name(path: str) -> str:
    """What the page asks for; in all weights of a head it finds any block of cells, however that is asked for."""
    return path.partition("/block?")[0] + "/cells" if "/block?" in path else path


def _cells(body: bytes | None) -> bytes:
    """All weights of a head, as the explorer tells cells."""
    weights = numpy.load(io.BytesIO(body or b""))
    return pack_floats(weights, z=0, y=0, x=0, flags=EXACT | PARTLY_MASKED * bool(numpy.isnan(weights).any()))


async def _answer(app: App, path: str, *, needed: bool = False) -> bytes | None:
    """An answer that stays as it is; None where there is nothing, empty where it is refused."""
    while True:
        async with send_request(app, path) as heard:
            status, media, body = heard.status, heard.media, await heard.whole()
        if status == 204:
            return None
        if status != 200:
            if needed or status not in (400, 404):
                raise AttnScopeError(f"the page cannot be saved: {json.loads(body)['error']}")
            return b""
        if not _is_preview(path, media, body):
            return body
        await asyncio.sleep(AGAIN)


def _is_preview(path: str, media: str, body: bytes) -> bool:
    """Whether the same question has a better answer later; small pictures say that they left rows out, and stay so."""
    if media == JSON:
        return body.endswith(b'"pending":true}')
    final = any(part in path for part in ("/thumbs?", "/block?"))
    return media == BYTES and not final and bool(Header.unpack(body).flags & PARTIAL)


def make_fragment(at: str, trace: str, head: tuple[int, int]) -> str:
    """The fragment to open with: what was shown, of a trace and a head that are there.

    >>> make_fragment("#1/0123456789abcdef/L1H2/text?pin=q3&if=1", "f" * 16, (1, 2))
    '#1/ffffffffffffffff/L1H2/text?pin=q3'
    """
    found = ADDRESS.fullmatch(at) if len(at) <= MAX_FRAGMENT_LENGTH else None
    view, rest = (found[1], found[2] or "") if found else ("map", "")
    pairs = [(name, value) for name, value in parse_qsl(rest) if name not in ("if", "abl", "how") and ":" not in value]
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe=',')}" for name, value in pairs)
    return f"#1/{trace}/L{head[0]}H{head[1]}/{view}{'?' if query else ''}{query}"


def render_page(assets: Mapping[str, bytes], answers: str, title: str, at: str) -> bytes:
    """The page as HTML: nothing in it is run but the explorer's own script, which its policy knows by its hash."""
    script, style = (assets[name].decode("utf-8") for name in ("explorer.js", "explorer.css"))
    script = re.sub(r"<(?=!--|/?script)", r"\\x3c", script, flags=re.IGNORECASE)
    if re.search(r"</style|<!--", style, re.IGNORECASE):
        raise SettingError("the page cannot be saved: its style sheet would end inside itself; build the page anew")
    readable = "".join(one if one.isprintable() else " " for one in title)[:120]
    return PAGE.format(
        policy=POLICY.format(script=_hash(script), style=_hash(style)),
        title=html.escape(readable),
        style=style,
        at=html.escape(at),
        without=WITHOUT,
        answers=answers,
        script=script,
    ).encode("utf-8", "replace")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
