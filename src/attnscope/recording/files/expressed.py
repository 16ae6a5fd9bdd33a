"""Masks and scores again, from the nodes and tensors that `expressions` wrote, or that somebody made up.

In: a list of nodes, and tensors by name. Out: the mask or score at each place, the same object wherever it is pointed
at. A node points at those before it, so there are no circles; how deep and how large what they make may be is limited.
Does not know: files, layers, whether they fit an attention (`Rules.check` is asked for that).
Memory: the masks; padding and documents copy their O(n) tensors, all others hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from attnscope.attention import (
    ALiBi,
    Bias,
    Causal,
    Documents,
    Full,
    Padding,
    Prefix,
    Sinks,
    Softcap,
    Temperature,
    Window,
    from_bool,
)
from attnscope.attention.algebra import Mask, Sizes
from attnscope.attention.scores import ScoreMod
from attnscope.errors import ShapeError, TraceError
from attnscope.recording.files.expressions import MAX_DEPTH
from attnscope.recording.files.manifest import MAX_NUMBER, Entry
from attnscope.recording.layers.step_masks import StackedMask, Step

MAX_NODES = 200_000
MAX_PARTS = 2**22  # of one expression: shared nodes count as often as they are met, since checks meet them so often
MAX_STEPS = 2**20  # of a stack
MAX_COPIED = 2**30  # numbers of a tensor that a mask copies
MAX_SCORES = 256  # one after the other
MAX_CHECKED = 2**24  # of all layers together

TENSORS = ("ids", "query_ids", "keep", "attend", "steps", "slopes", "values", "table", "logits")
"""The fields of nodes that name a tensor."""

Kind = TypeVar("Kind", Mask, ScoreMod)


def tensor_names(nodes: Sequence[object]) -> Collection[str]:
    """The names of all tensors that the nodes want."""
    named = (node.get(field) for node in nodes if isinstance(node, dict) for field in TENSORS)
    return {name for name in named if isinstance(name, str)}


class _Made(NamedTuple):
    """What a node has become."""

    what: Mask | ScoreMod
    depth: int
    parts: int


class Rules:
    """The masks and scores of a trace, by their places."""

    def __init__(self, nodes: Sequence[object], tensors: Mapping[str, Tensor], where: str) -> None:
        self._tensors, self._where = tensors, where
        self._made: list[_Made] = []
        self._checked: set[tuple[int, Sizes]] = set()
        self._parts_checked = 0
        for place, node in enumerate(nodes):
            self._made.append(self._make(Entry(node, f"{where}: expression {place}")))

    def mask(self, place: int) -> Mask:
        """The mask at a place."""
        return self._at(place, Mask).what  # pyright: ignore[reportReturnType]

    def score(self, place: int) -> ScoreMod:
        """The score at a place."""
        return self._at(place, ScoreMod).what  # pyright: ignore[reportReturnType]

    def check(self, place: int, sizes: Sizes, where: str) -> None:
        """Raise unless the mask at a place fits an attention of these sizes; asked again, it is free."""
        if (place, sizes) in self._checked:
            return
        self._parts_checked += self._made[place].parts
        if self._parts_checked > MAX_CHECKED:
            raise TraceError(
                f"{where}: the masks of this trace have more than {MAX_CHECKED:,} parts, which is too many"
            )
        try:
            self.mask(place).check(sizes)
        except (ShapeError, ValueError) as error:
            raise TraceError(f"{where}: its mask does not fit its shape {tuple(sizes)}: {str(error)[:300]}") from error
        self._checked.add((place, sizes))

    def _at(self, place: int, kind: type[Mask] | type[ScoreMod]) -> _Made:
        if not 0 <= place < len(self._made) or not isinstance(self._made[place].what, kind):
            raise TraceError(
                f"{self._where}: expression {place} is no {kind.__name__.lower()} that was there before it"
            )
        return self._made[place]

    def _make(self, entry: Entry) -> _Made:
        kind = entry.text("kind")
        reader = READERS.get(kind)
        if reader is None:
            raise entry.wrong("kind", kind, f"one of {', '.join(READERS)}")
        inside = _Inside(entry, self._at, self._tensors)
        try:
            what = reader(inside)
        except TraceError:
            raise
        except (ValueError, TypeError, RuntimeError) as error:
            raise TraceError(f"{self._where}: a {kind} is wrong: {str(error)[:300]}") from error
        entry.finish()
        made = _Made(what, inside.depth + 1, inside.parts + 1)
        if made.depth > MAX_DEPTH or made.parts > MAX_PARTS:
            raise TraceError(
                f"{self._where}: a {kind} holds {made.parts:,} parts in {made.depth} levels; at most {MAX_PARTS:,} in "
                f"{MAX_DEPTH} are read"
            )
        return made


class _Inside:
    """One node while it is read: counts what it is made of."""

    def __init__(self, entry: Entry, at: Callable[[int, type[Any]], _Made], tensors: Mapping[str, Tensor]) -> None:
        self.entry, self._at, self._tensors = entry, at, tensors
        self.depth = self.parts = 0

    def whole_or_each(self, name: str, lowest: int = -MAX_NUMBER) -> int | list[int]:
        """One number, or one for each batch row."""
        found = self.entry.whole_or_wholes(name, lowest)
        self.parts += len(found) if isinstance(found, list) else 0
        return found

    def mask(self, place: int, times: int = 1) -> Mask:
        """A mask that stands inside, so many times."""
        return self._take(self._at(place, Mask), times)

    def score(self, place: int) -> ScoreMod:
        """A score that stands inside."""
        return self._take(self._at(place, ScoreMod), 1)

    def _take(self, made: _Made, times: int) -> Any:
        self.depth, self.parts = max(self.depth, made.depth), self.parts + made.parts * times
        return made.what

    def tensor(self, name: str) -> Tensor:
        """A tensor."""
        return self._tensors[self.entry.text(name)]

    def copied(self, name: str) -> Tensor:
        """A tensor that will be copied; a file may claim a size without taking it on the disk."""
        tensor = self.tensor(name)
        if tensor.numel() > MAX_COPIED:
            raise self.entry.wrong(name, tuple(tensor.shape), f"a tensor of at most {MAX_COPIED:,} numbers")
        return tensor

    def numbers(self, name: str, axes: int | None = None) -> Tensor:
        """A tensor of floating point numbers."""
        tensor = self.tensor(name)
        if not tensor.is_floating_point() or (axes is not None and tensor.dim() != axes):
            wanted = "numbers" if axes is None else f"numbers on {axes} axes"
            raise self.entry.wrong(name, f"{tensor.dtype} {tuple(tensor.shape)}", wanted)
        return tensor


def _causal(node: _Inside) -> Mask:
    return Causal(_offset(node))


def _window(node: _Inside) -> Mask:
    before, after = node.entry.whole("before"), node.entry.whole("after")
    return Window(before=before, after=after, offset=_offset(node))


def _offset(node: _Inside) -> int | list[int] | None:
    return None if node.entry.is_null("offset") else node.whole_or_each("offset")


def _documents(node: _Inside) -> Mask:
    return Documents(node.copied("ids"), None if node.entry.is_null("query_ids") else node.copied("query_ids"))


def _lengths(node: _Inside) -> Mask:
    lengths = node.whole_or_each("lengths", 0)
    if not isinstance(lengths, list) or not lengths:
        raise node.entry.wrong("lengths", lengths, "one number for each batch row")
    return Padding(lengths)


def _padding(node: _Inside) -> Mask:
    keep = node.copied("keep")
    if keep.dtype != torch.bool:
        raise node.entry.wrong("keep", str(keep.dtype), "booleans")
    return Padding(keep=keep)


def _stacked(node: _Inside) -> Mask:
    places, table = node.entry.wholes("masks"), node.tensor("steps")
    if table.dtype != torch.int64 or table.dim() != 2 or table.shape[1] != 5 or not 0 < len(table) <= MAX_STEPS:
        wanted = f"whole numbers (steps, 5) for up to {MAX_STEPS:,} steps"
        raise node.entry.wrong("steps", f"{table.dtype} {tuple(table.shape)}", wanted)
    top, bottom, left, right, which = table.unbind(1)
    ordered = (top >= 0) & (bottom >= top) & (left >= 0) & (right >= left) & (right <= MAX_NUMBER)
    if not bool((ordered & (bottom <= MAX_NUMBER) & (which >= 0) & (which < len(places))).all()):
        raise node.entry.wrong("steps", "a table", "rows, columns and a mask for each step, in order")
    times = torch.bincount(which, minlength=len(places)).tolist()
    masks = [node.mask(place, count) for place, count in zip(places, times, strict=True)]
    return StackedMask(tuple(Step(masks[at], *where) for *where, at in table.tolist()))


def _t5(node: _Inside) -> ScoreMod:
    entry, table = node.entry, node.numbers("table", 2)
    bidirectional, max_distance = entry.flag("bidirectional"), entry.whole("max_distance", 1)
    exact = table.shape[0] // (4 if bidirectional else 2)  # distances that have a bucket of their own
    if not 0 < exact < max_distance:
        raise entry.wrong("table", tuple(table.shape), f"a table of buckets up to the distance {max_distance}")
    return Bias.t5(table, bidirectional=bidirectional, max_distance=max_distance, offset=entry.optional_whole("offset"))


def _by_distance(node: _Inside) -> ScoreMod:
    first, offset = node.entry.whole("first", -MAX_NUMBER), node.entry.optional_whole("offset")
    return Bias.by_distance(node.numbers("values", 2), first=first, offset=offset)


def _chain(node: _Inside) -> ScoreMod:
    parts = [node.score(place) for place in node.entry.wholes("parts")]
    if not 0 < node.parts <= MAX_SCORES:
        raise node.entry.wrong("parts", f"{node.parts} scores", f"from one to {MAX_SCORES}")
    return reduce(add, parts)


READERS: dict[str, Callable[[_Inside], Mask | ScoreMod]] = {
    "full": lambda _: Full(),
    "causal": _causal,
    "window": _window,
    "prefix": lambda node: Prefix(node.whole_or_each("length")),
    "documents": _documents,
    "lengths": _lengths,
    "padding": _padding,
    "booleans": lambda node: from_bool(attend=node.tensor("attend")),
    "and": lambda node: node.mask(node.entry.whole("first")) & node.mask(node.entry.whole("second")),
    "or": lambda node: node.mask(node.entry.whole("first")) | node.mask(node.entry.whole("second")),
    "not": lambda node: ~node.mask(node.entry.whole("inner")),
    "stacked": _stacked,
    "softcap": lambda node: Softcap(node.entry.number("cap")),
    "temperature": lambda node: Temperature(node.entry.number("value")),
    "alibi": lambda node: ALiBi(node.numbers("slopes", 1), offset=node.entry.optional_whole("offset")),
    "bias": lambda node: Bias(node.numbers("values")),
    "t5": _t5,
    "by distance": _by_distance,
    "sinks": lambda node: Sinks(node.numbers("logits", 1)),
    "chain": _chain,
}
