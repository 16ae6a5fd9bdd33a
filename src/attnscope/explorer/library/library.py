"""`Library`: the open traces of an explorer, by id, with cached results.

In: traces. Out: their layers, heads, tokens and tiles. Concurrent requests for the same result compute it once.
Does not know: HTTP, models. Memory: the traces, tiles up to a limit, and the coarse levels of the last heads.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from attnscope.atlas import ByteCache, HeadAtlas
from attnscope.atlas.atlas import FOREGROUND
from attnscope.atlas.pyramid import EncodedTile
from attnscope.attention.algebra import Sizes
from attnscope.attention.regions import Region
from attnscope.errors import Cancelled, SettingError, UnsupportedError
from attnscope.explorer.analysis.image_maps import list_images, name_positions, open_image
from attnscope.explorer.analysis.inspection import head_scores
from attnscope.explorer.analysis.sections import Section, sections
from attnscope.explorer.analysis.thumbnails import thumbnails
from attnscope.explorer.analysis.words import word_starts
from attnscope.explorer.library.evictions import Evictions
from attnscope.explorer.library.example import NAME, example
from attnscope.explorer.library.survey import SurveyView
from attnscope.explorer.library.trace_id import compute_trace_id, derive_id
from attnscope.explorer.library.trace_scores import TraceScores
from attnscope.explorer.library.unmasked import NOTE, remove_causal_mask
from attnscope.explorer.library.watched_run import WatchedRunView
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace
from attnscope.recording.files.saving import AnyLayer
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.statistics import StatisticsLayer

TILE_BYTES = 2**28
MAX_LIVE = 24  # traces of typed texts
MAX_HEADS, MAX_HEAD_BYTES = 48, 2**29  # of heads whose coarse levels are cached


class Head(NamedTuple):
    """A head of the first sequence of a trace."""

    matrix: AttentionMatrix
    atlas: HeadAtlas


class BackgroundWork(Protocol):
    """Work for a trace that runs in the background."""

    def start(self) -> None:
        """Start it, or put it first."""
        ...

    def close(self) -> None:
        """Cancel it, and wait until it has stopped."""
        ...


class TokenAxis:
    """The tokens along one axis of a matrix."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    @cached_property
    def sections(self) -> list[Section]:
        """Headings and paragraphs."""
        return sections(self.texts)

    @cached_property
    def words(self) -> list[int]:
        """The first token of each word."""
        return word_starts(self.texts)

    @cached_property
    def _folded(self) -> tuple[str, list[int]]:
        """The casefolded text, and the offset of each token."""
        parts = [text.casefold() for text in self.texts]
        return "".join(parts), [0, *accumulate(map(len, parts))]

    def find(self, text: str, after: int, *, backward: bool) -> dict[str, int | None]:
        """Find the next token from `after` on at which a text begins; it may span several tokens.

        Returns:
            `position` of the token or None, the `count` of all such tokens, and the `index` among them or -1.
        """
        whole, starts = self._folded
        wanted = re.escape(text.strip().casefold())
        begins = (bisect_right(starts, found.start()) - 1 for found in re.finditer(f"(?={wanted})", whole))
        places = list(dict.fromkeys(begins))
        at = bisect_right(places, after) - 1 if backward else bisect_left(places, after)
        inside = 0 <= at < len(places)
        return {"position": places[at] if inside else None, "count": len(places), "index": at if inside else -1}


class Entry:
    """An open trace, its id and name, and cached results."""

    def __init__(
        self, trace: Trace, trace_id: str, name: str, *, note: str | None = None, origin: str | None = None
    ) -> None:
        self.trace, self.trace_id, self.name, self.note, self.origin = trace, trace_id, name, note, origin
        self.unmasked: Entry | None = None
        self.listed = False  # in the session
        self.background: dict[str, BackgroundWork] = {}
        self.lock = threading.RLock()
        self._results: dict[Hashable, Any] = {}

    def layer(self, place: int) -> AnyLayer:
        """Return a layer by its index."""
        return self.trace.layer(place)

    def matrix(self, place: int) -> AttentionMatrix:
        """Return the matrix of a layer for the first sequence, (heads, queries, keys)."""
        return self._compute_once(("matrix", place), lambda: self.layer(place).matrix().batch(0))

    def axis(self, place: int, side: str) -> TokenAxis | None:
        """Return the tokens of the queries or keys of a layer; layers of the same text share them.

        Positions of an image model are named by their patches.
        """
        at = ("query", "key").index(side)
        ids = self.trace.ids(place)[at]
        same = ("given", self.layer(place).shape[2 + at]) if ids is None else id(ids)
        found = self._compute_once(("axis", same), lambda: _axis(self.trace.labels(place)[at]))
        if found is not None or not self.images:
            return found
        return self._compute_once(("patches", place, at), lambda: _axis(self._name_patches(place, 2 + at)))

    @property
    def images(self) -> list[dict[str, Any]]:
        """The images of the trace, and the layers that have their patches."""
        return self._compute_once("images", lambda: list_images(self.trace))

    def _name_patches(self, place: int, axis: int) -> list[str] | None:
        images = [image["image"] for image in self.images if place in image["layers"]]
        return name_positions(open_image(self.trace, images[0]), self.layer(place).name, axis) if images else None

    def is_causal(self, place: int) -> bool:
        """Whether all later keys of a layer are known to be masked."""
        return self._compute_once(("causal", place), lambda: _is_causal(self.layer(place)))

    @property
    def scores(self) -> TraceScores:
        """The scores of all heads so far."""
        return self._compute_once("scores", lambda: TraceScores(self.trace, self.is_causal, self.matrix))

    @property
    def evictions(self) -> Evictions:
        """What a KV cache would keep of this text."""
        return self._compute_once("evictions", lambda: Evictions(self.trace, self.is_causal))

    def stop_background(self) -> None:
        """Cancel the background work of this trace."""
        for work in list(self.background.values()):
            work.close()

    def summary(self) -> dict[str, Any]:
        """Return the summary of the trace, as in the session."""
        shapes = [layer.shape for layer in self.trace.layers.values()]
        return {
            "trace": self.trace_id,
            "name": self.name,
            "tokens": max(shape[3] for shape in shapes),
            "layers": len(shapes),
            "heads": sum(shape[1] for shape in shapes),
        }

    def meta(self) -> dict[str, Any]:
        """Return the description of the trace and its layers."""
        return {
            "trace": self.trace_id,
            "name": self.name,
            "model": self.trace.model,
            "note": self.note,
            "unmasked": None if self.unmasked is None else self.unmasked.trace_id,
            "origin": self.origin,
            "images": self.images,
            "layers": [self._layer_meta(place) for place in range(len(self.trace))],
        }

    def _layer_meta(self, place: int) -> dict[str, Any]:
        layer = self.layer(place)
        _, heads, queries, keys = layer.shape
        return {
            "name": layer.name,
            "heads": heads,
            "numbers": list(layer.heads),
            "queries": queries,
            "keys": keys,
            "causal": self.is_causal(place),
            "offset": keys - queries,
            "window": self._compute_once(("window", place), lambda: _window(layer)),
            "cross": layer.cross,
            "zeros_masked": isinstance(layer, DenseLayer),  # the mask of imported weights is not known
            "has_texts": all(self.axis(place, side) is not None for side in ("query", "key")),
        }

    def _compute_once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self.lock:
            if key not in self._results:
                self._results[key] = make()
            return self._results[key]


class Library:
    """The open traces, and their heads.

    Args:
        tile_bytes: The size of the tile cache.
    """

    def __init__(self, *, tile_bytes: int = TILE_BYTES) -> None:
        self.cache = ByteCache(tile_bytes)
        self.closing = threading.Event()
        self.survey: SurveyView | None = None
        self.watched: WatchedRunView | None = None
        self._entries: dict[str, Entry] = {}
        self._live: OrderedDict[str, None] = OrderedDict()
        self._example: str | None = None
        self._heads: OrderedDict[tuple[str, int, int], Head] = OrderedDict()
        self._lock = threading.RLock()

    def add(self, trace: Trace, *, name: str, live: bool = False, listed: bool = True) -> str:
        """Add a trace, unless it is already open, and return its id.

        Args:
            trace: The trace.
            name: The name to display.
            live: Drop it when there are too many newer live traces.
            listed: Whether it is in `summaries`.

        Returns:
            The id of the trace.

        Raises:
            SettingError: The trace is empty.
            UnsupportedError: The trace has no weights.
        """
        _check_showable(trace)
        trace_id = compute_trace_id(trace)
        entry = Entry(trace, trace_id, name)
        unmasked = remove_causal_mask(trace)
        if unmasked is not None:
            entry.unmasked = Entry(unmasked, derive_id(trace_id, "without its mask"), name, note=NOTE, origin=trace_id)
        with self._lock:
            known = self._entries.setdefault(trace_id, entry)
            known.listed = known.listed or listed
            if known.unmasked is not None:
                self._entries[known.unmasked.trace_id] = known.unmasked
            if live and (trace_id in self._live or known is entry):
                self._live[trace_id] = None
                self._live.move_to_end(trace_id)
            while len(self._live) > MAX_LIVE:
                self._drop(self._live.popitem(last=False)[0])
        return trace_id

    def entry(self, trace_id: str) -> Entry | None:
        """Return an open trace by its id."""
        with self._lock:
            return self._entries.get(trace_id)

    def first_listed(self) -> Entry | None:
        """Return the trace that a page opens if its address names none."""
        with self._lock:
            return next((entry for entry in self._entries.values() if entry.listed), None)

    def summaries(self) -> list[dict[str, Any]]:
        """Return the summaries of all listed traces."""
        with self._lock:
            return [entry.summary() for entry in self._entries.values() if entry.listed]

    def example(self) -> str:
        """Open the shipped example, which is not listed, and return its id."""
        with self._lock:
            if self._example is None:
                self._example = self.add(example(), name=NAME, listed=False)
            return self._example

    def head(self, entry: Entry, layer: int, head: int) -> Head:
        """Return a head of a trace, with its tiles; the least recently used heads are dropped."""
        FOREGROUND.note_request()
        key = entry.trace_id, layer, head
        with self._lock:
            if self.closing.is_set():
                raise Cancelled("the explorer is closing")
            if key in self._heads:
                self._heads.move_to_end(key)
                return self._heads[key]
        matrix = entry.matrix(layer).head(head).with_options(should_stop=self.closing.is_set)
        with self._lock:
            found = self._heads.get(key)
            if found is None:
                found = self._heads[key] = Head(matrix, HeadAtlas(matrix, self.cache, "/".join(map(str, key))))
            dropped = self._evict()
        for old in dropped:
            old.atlas.close()
        return found

    def preview(self, entry: Entry, layer: int, head: int) -> EncodedTile:
        """Return a thumbnail of one head, to show while its tiles are computed."""

        def make() -> EncodedTile:
            matrix = entry.matrix(layer).head(head).with_options(should_stop=self.closing.is_set)
            return thumbnails(matrix, layer)

        return self.cache.get(("preview", entry.trace_id, layer, head), make, lambda bodies: bodies.nbytes)

    def find_open_head(self, entry: Entry, layer: int, head: int) -> Head | None:
        """Return a head if it is already open, without waiting."""
        with self._lock:
            return self._heads.get((entry.trace_id, layer, head))

    def _evict(self) -> list[Head]:
        """Remove heads above the limits, but not the most recent one."""
        evicted = []
        while len(self._heads) > MAX_HEADS or (
            len(self._heads) > 1 and sum(head.atlas.nbytes for head in self._heads.values()) > MAX_HEAD_BYTES
        ):
            evicted.append(self._heads.popitem(last=False)[1])
        return evicted

    def scores(self, entry: Entry, layer: int, head: int) -> tuple[list[dict[str, str]], dict[str, float]]:
        """Score a head, yielding to tiles; raises Cancelled when the library closes.

        All heads of a small layer are scored together: nine take about as long as two that are scored alone.
        """
        together = entry.scores.score_small(layer, self._is_closing)
        if together is not None and (own := together["heads"][head])["scores"]:
            return [{"name": label, "meaning": together["meanings"][label]} for label in own["labels"]], own["scores"]
        return head_scores(entry.trace, layer, head, self._is_closing)  # of a head with NaN, it raises what is wrong

    def score_first(self, entry: Entry, layer: int) -> dict[str, Any] | None:
        """Score all heads of a layer on its first queries, in the same way; None if only the whole text can be."""
        return entry.scores.score_first(layer, self._is_closing)

    def start_scoring(self, entry: Entry) -> TraceScores:
        """Score all heads of a trace in the background, until the library closes or the trace is dropped."""
        self.start_background(entry, entry.scores)
        return entry.scores

    def start_background(self, entry: Entry, work: BackgroundWork) -> None:
        """Start background work of a trace; it ends when the library closes or the trace is dropped."""
        with self._lock:
            if self.closing.is_set() or self._entries.get(entry.trace_id) is not entry:
                raise Cancelled("the explorer is closing, or the trace was dropped")
            entry.background[type(work).__name__] = work
            work.start()

    def _is_closing(self) -> bool:
        FOREGROUND.give_way()
        return self.closing.is_set()

    def close(self) -> None:
        """Cancel all computation."""
        self.closing.set()
        with self._lock:
            heads, entries = list(self._heads.values()), list(self._entries.values())
            self._heads.clear()
        for head in heads:
            head.atlas.close()
        for entry in entries:
            entry.stop_background()

    def _drop(self, trace_id: str) -> None:
        entry = self._entries.pop(trace_id)
        ids = {trace_id} | ({entry.unmasked.trace_id} if entry.unmasked is not None else set())
        self._entries.pop(entry.unmasked.trace_id if entry.unmasked is not None else "", None)
        for key in [key for key in self._heads if key[0] in ids]:
            self._heads.pop(key).atlas.close()
        for dropped in filter(None, [entry, entry.unmasked]):
            dropped.stop_background()


def _check_showable(trace: Trace) -> None:
    if not len(trace):
        raise SettingError(
            "explore: expected a trace with layers, got an empty one; run the model inside the with block of record"
        )
    for layer in trace.layers.values():
        if isinstance(layer, StatisticsLayer):
            raise UnsupportedError(
                f"explore: {layer.name} was recorded with keep='statistics', which drops the weights; record with "
                "keep='matrix'"
            )
        if not all(layer.shape):
            raise SettingError(f"explore: expected a layer with cells, got {layer.name} of shape {tuple(layer.shape)}")


def _axis(texts: list[str] | None) -> TokenAxis | None:
    return None if texts is None else TokenAxis(texts)


def _is_causal(layer: AnyLayer) -> bool:
    """Whether a layer is causal, from its weights or from the regions of its mask."""
    _, _, queries, keys = layer.shape
    offset = keys - queries
    if isinstance(layer, DenseLayer):
        return not bool(layer.weights[:1].triu(offset + 1).any())
    regions = _regions(layer)
    return regions is not None and all(region.highest <= offset for found in regions for region in found)


def _window(layer: AnyLayer) -> int | None:
    """The most keys that a query of a layer sees, if that is a single band of diagonals narrower than the layer."""
    regions = None if isinstance(layer, DenseLayer) else _regions(layer)
    if not regions or any(len(found) != 1 for found in regions):
        return None
    width = max(region.highest - region.lowest + 1 for (region,) in regions)
    return width if width < layer.shape[3] else None


def _regions(layer: AnyLayer) -> list[list[Region]] | None:
    """The cells of each head that its mask leaves, for the first sequence; None if they are not regions."""
    assert isinstance(layer, Layer)
    mask = layer.merge_calls().mask.narrow(slice(0, 1), slice(0, layer.shape[1]))
    lowered = mask.to_regions(Sizes(1, *layer.shape[1:]))
    if lowered is None:
        return None
    tight = ([region.tighten() for region in found] for found in lowered.regions)
    return [[region for region in found if region is not None] for found in tight]
