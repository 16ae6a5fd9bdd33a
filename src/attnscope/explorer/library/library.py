"""`Library`: the traces that an explorer shows, by name, with what has been computed of them.

In: traces. Out: their layers, heads, tokens and tiles. Whatever several requests may ask for at once is made once.
Does not know: HTTP, models. Memory: the traces, tiles up to a limit, and what the last heads that were asked for hold.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from attnscope.atlas import ByteCache, HeadAtlas
from attnscope.atlas.atlas import FOREGROUND
from attnscope.attention.algebra import Sizes
from attnscope.errors import Cancelled, SettingError, UnsupportedError
from attnscope.explorer.analysis.inspection import head_scores
from attnscope.explorer.analysis.layer_scores import layer_scores
from attnscope.explorer.analysis.sections import Section, sections
from attnscope.explorer.analysis.words import word_starts
from attnscope.explorer.library.example import NAME, example
from attnscope.explorer.library.survey import SurveyView
from attnscope.explorer.library.trace_id import compute_trace_id, derive_id
from attnscope.explorer.library.unmasked import NOTE, remove_causal_mask
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace
from attnscope.recording.files.saving import AnyLayer
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.statistics import StatisticsLayer

MEMORY = 2**28  # bytes of tiles
MAX_LIVE = 24  # traces of typed sentences
MAX_HEADS, HEADS_MEMORY = 48, 2**29  # heads whose coarse levels are kept, and the bytes of those


class Head(NamedTuple):
    """A head of the first text of a trace."""

    matrix: AttentionMatrix
    atlas: HeadAtlas


class Axis:
    """The tokens along one side of a matrix."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    @cached_property
    def sections(self) -> list[Section]:
        """Names along the text."""
        return sections(self.texts)

    @cached_property
    def words(self) -> list[int]:
        """The first token of each word."""
        return word_starts(self.texts)

    @cached_property
    def _folded(self) -> tuple[str, list[int]]:
        """The text in lower case, and where each token begins in it."""
        parts = [text.casefold() for text in self.texts]
        return "".join(parts), [0, *accumulate(map(len, parts))]

    def find(self, text: str, after: int, *, backward: bool) -> dict[str, int | None]:
        """The next token from a position on at which a text begins, which may go on over others.

        `count` is how many tokens there are at which it begins, and `index` which of them this is; -1 if none.
        """
        whole, starts = self._folded
        wanted = re.escape(text.strip().casefold())
        begins = (bisect_right(starts, found.start()) - 1 for found in re.finditer(f"(?={wanted})", whole))
        places = list(dict.fromkeys(begins))
        at = bisect_right(places, after) - 1 if backward else bisect_left(places, after)
        inside = 0 <= at < len(places)
        return {"position": places[at] if inside else None, "count": len(places), "index": at if inside else -1}


class Entry:
    """A trace and what is said about it."""

    def __init__(
        self, trace: Trace, identity: str, name: str, *, note: str | None = None, origin: str | None = None
    ) -> None:
        self.trace, self.identity, self.name, self.note, self.origin = trace, identity, name, note, origin
        self.what_if: Entry | None = None
        self.listed = False  # among what there is to see
        self.lock = threading.RLock()
        self._made: dict[Hashable, Any] = {}

    def layer(self, place: int) -> AnyLayer:
        """A layer by its place."""
        return self.trace.layer(place)

    def matrix(self, place: int) -> AttentionMatrix:
        """The matrix of a layer for the first text, with leading (head)."""
        return self._once(("matrix", place), lambda: self.layer(place).matrix().batch(0))

    def axis(self, place: int, side: str) -> Axis | None:
        """The tokens of the queries or of the keys of a layer; layers that read the same text share them."""
        at = ("query", "key").index(side)
        ids = self.trace.ids(place)[at]
        same = ("given", self.layer(place).shape[2 + at]) if ids is None else id(ids)
        return self._once(("axis", same), lambda: _axis(self.trace.labels(place)[at]))

    def is_causal(self, place: int) -> bool:
        """Whether it is known that no query of a layer sees a key behind its own position."""
        return self._once(("causal", place), lambda: _is_causal(self.layer(place)))

    def summary(self) -> dict[str, Any]:
        """The trace in a line."""
        shapes = [layer.shape for layer in self.trace.layers.values()]
        return {
            "trace": self.identity,
            "name": self.name,
            "tokens": max(shape[3] for shape in shapes),
            "layers": len(shapes),
            "heads": sum(shape[1] for shape in shapes),
        }

    def meta(self) -> dict[str, Any]:
        """The trace and all its layers."""
        return {
            "trace": self.identity,
            "name": self.name,
            "model": self.trace.model,
            "note": self.note,
            "what_if": None if self.what_if is None else self.what_if.identity,
            "origin": self.origin,
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
            "cross": layer.cross,
            "zeros_hidden": isinstance(layer, DenseLayer),  # nobody knows the mask of weights that were there already
            "texts": all(self.axis(place, side) is not None for side in ("query", "key")),
        }

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self.lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]


class Library:
    """Traces by their names, and their heads."""

    def __init__(self, *, memory: int = MEMORY) -> None:
        self.cache = ByteCache(memory)
        self.closing = threading.Event()
        self.survey: SurveyView | None = None
        self._entries: dict[str, Entry] = {}
        self._live: OrderedDict[str, None] = OrderedDict()
        self._example: str | None = None
        self._heads: OrderedDict[tuple[str, int, int], Head] = OrderedDict()
        self._lock = threading.RLock()

    def add(self, trace: Trace, *, name: str, live: bool = False, listed: bool = True) -> str:
        """Add a trace and say what it is called from now on; of live ones, the oldest are forgotten.

        A trace that is there already stays as it is. One that is not `listed` is found by its name alone.
        """
        _check_showable(trace)
        identity = compute_trace_id(trace)
        entry = Entry(trace, identity, name)
        other = remove_causal_mask(trace)
        if other is not None:
            entry.what_if = Entry(other, derive_id(identity, "without its mask"), name, note=NOTE, origin=identity)
        with self._lock:
            known = self._entries.setdefault(identity, entry)
            known.listed = known.listed or listed
            if known.what_if is not None:
                self._entries[known.what_if.identity] = known.what_if
            if live and (identity in self._live or known is entry):
                self._live[identity] = None
                self._live.move_to_end(identity)
            while len(self._live) > MAX_LIVE:
                self._forget(self._live.popitem(last=False)[0])
        return identity

    def entry(self, identity: str) -> Entry | None:
        """A trace by its name, if it is here."""
        with self._lock:
            return self._entries.get(identity)

    def summaries(self) -> list[dict[str, Any]]:
        """All traces that somebody has added, in a line each."""
        with self._lock:
            return [entry.summary() for entry in self._entries.values() if entry.listed]

    def example(self) -> str:
        """The name of the trace that AttnScope brings along, which is not among the others."""
        with self._lock:
            if self._example is None:
                self._example = self.add(example(), name=NAME, listed=False)
            return self._example

    def head(self, entry: Entry, layer: int, head: int) -> Head:
        """A head of a trace, with its tiles; those that were asked for least recently are let go."""
        key = entry.identity, layer, head
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
            gone = self._let_go()
        for old in gone:
            old.atlas.close()
        return found

    def opened(self, entry: Entry, layer: int, head: int) -> Head | None:
        """A head that somebody has asked for already; nothing is waited for."""
        with self._lock:
            return self._heads.get((entry.identity, layer, head))

    def _let_go(self) -> list[Head]:
        """Heads beyond the number and the bytes that are kept, but not the one that is asked for."""
        gone = []
        while len(self._heads) > MAX_HEADS or (
            len(self._heads) > 1 and sum(head.atlas.nbytes for head in self._heads.values()) > HEADS_MEMORY
        ):
            gone.append(self._heads.popitem(last=False)[1])
        return gone

    def scores(self, entry: Entry, layer: int, head: int) -> tuple[list[dict[str, str]], dict[str, float]]:
        """Labels and scores of a head, while nobody waits for a tile; raises Cancelled when the library closes."""
        return head_scores(entry.trace, layer, head, self._closes)

    def layer_scores(self, entry: Entry, layer: int) -> dict[str, Any]:
        """Those of all heads of a layer, in the same way."""
        return layer_scores(entry.trace, layer, causal=entry.is_causal(layer), cancelled=self._closes)

    def _closes(self) -> bool:
        FOREGROUND.give_way()
        return self.closing.is_set()

    def close(self) -> None:
        """Stop whatever is being computed."""
        self.closing.set()
        with self._lock:
            heads = list(self._heads.values())
            self._heads.clear()
        for head in heads:
            head.atlas.close()

    def _forget(self, identity: str) -> None:
        entry = self._entries.pop(identity)
        names = {identity} | ({entry.what_if.identity} if entry.what_if is not None else set())
        self._entries.pop(entry.what_if.identity if entry.what_if is not None else "", None)
        for key in [key for key in self._heads if key[0] in names]:
            self._heads.pop(key).atlas.close()


def _check_showable(trace: Trace) -> None:
    if not len(trace):
        raise SettingError("explore: this trace is empty; run the model inside the with block of record first")
    for layer in trace.layers.values():
        if isinstance(layer, StatisticsLayer):
            raise UnsupportedError(
                f"explore: {layer.name} was recorded with keep='statistics', so that its weights are gone; record "
                "with keep='matrix'"
            )
        if not all(layer.shape):
            raise SettingError(f"explore: {layer.name} has the shape {tuple(layer.shape)}, in which there is nothing")


def _axis(texts: list[str] | None) -> Axis | None:
    return None if texts is None else Axis(texts)


def _is_causal(layer: AnyLayer) -> bool:
    """From weights that are there, or from the mask, where that is made of regions."""
    _, _, queries, keys = layer.shape
    offset = keys - queries
    if isinstance(layer, DenseLayer):
        return not bool(layer.weights[:1].triu(offset + 1).any())
    assert isinstance(layer, Layer)
    mask = layer.joined().mask.narrow(slice(0, 1), slice(0, layer.shape[1]))
    lowered = mask.to_regions(Sizes(1, *layer.shape[1:]))
    if lowered is None:
        return False
    tight = [region.tighten() for found in lowered.regions for region in found]
    return all(region is None or region.highest <= offset for region in tight)
