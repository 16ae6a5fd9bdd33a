"""A layer of a trace as an entry for JSON and tensors for a file, and back.

In: a layer of any kind. Out: what has to be written of it; and from that, or from what somebody made up, a layer again
whose tensors fit each other, its shape, its mask and its scores, or a `TraceError`.
Does not know: files. Memory: that of the layer; tensors are held and not copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from attnscope.attention import Full
from attnscope.attention.algebra import Sizes
from attnscope.attention.rule import make_rule, sign
from attnscope.errors import TraceError
from attnscope.matrix.summary import Summary
from attnscope.recording.call import Call
from attnscope.recording.files.expressed import Rules
from attnscope.recording.files.expressions import Expressions, finite
from attnscope.recording.files.manifest import Entry
from attnscope.recording.files.tensors import MAX_SIZE
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.statistics import StatisticsLayer
from attnscope.recording.token_pairs import NAMES

AnyLayer = Layer | StatisticsLayer | DenseLayer

ALWAYS = {"matrix": ("query", "key"), "dense": ("weights",), "statistics": Summary._fields}
SOMETIMES = {"matrix": ("value", "lse"), "dense": (), "statistics": ("begins",)}
"""The tensors of each kind of layer."""

COUNTS = ("visible_cells", "visible_keys", "visible_queries", "num_matches", "begins")
"""Those of them that hold whole numbers."""


class Kept(NamedTuple):
    """What is written of a layer."""

    entry: dict[str, Any]
    tensors: dict[str, Tensor]


def keep(name: str, layer: AnyLayer, expressions: Expressions) -> Kept:
    """What to write of a layer."""
    if isinstance(layer, Layer):
        kind, (more, tensors) = "matrix", _of_call(layer.joined(), expressions)
    elif isinstance(layer, DenseLayer):
        kind, more, tensors = "dense", {}, {"weights": layer.weights}
    else:
        kind, (more, tensors) = "statistics", _of_summary(layer)
    about = {"name": name, "kind": kind, "cross": bool(layer.cross), "shape": [int(size) for size in layer.shape]}
    about["heads"] = [int(head) for head in layer.heads]
    return Kept({**about, "tensors": list(tensors), **more}, tensors)


def _of_call(call: Call, expressions: Expressions) -> Kept:
    tensors = {"query": call.query, "key": call.key, "value": call.value, "lse": call.lse}
    entry = {
        "scale": None if call.scale is None else finite(call.scale, "a layer"),
        "row": int(call.row),
        "column": int(call.column),
        "mask": expressions.mask(call.mask),
        "score": None if call.score_mod is None or not call.score_mod.parts else expressions.score(call.score_mod),
    }
    return Kept(entry, {name: tensor for name, tensor in tensors.items() if tensor is not None})


def _of_summary(layer: StatisticsLayer) -> Kept:
    tensors = layer.summary()._asdict() | ({} if layer.begins is None else {"begins": layer.begins})
    return Kept({"pairings": list(layer.pairings)}, tensors)


class Header(NamedTuple):
    """What every kind of layer says of itself."""

    name: str
    kind: str
    cross: bool
    shape: tuple[int, int, int, int]
    heads: tuple[int, ...]
    tensors: list[str]
    where: str

    @classmethod
    def read(cls, entry: Entry, where: str) -> Header:
        """Take the fields from an entry."""
        name, kind, cross = entry.text("name"), entry.text("kind"), entry.flag("cross")
        if kind not in ALWAYS:
            raise entry.wrong("kind", kind, f"one of {', '.join(ALWAYS)}")
        shape, tensors = entry.wholes("shape", 0, MAX_SIZE), entry.texts("tensors")
        if len(shape) != 4:
            raise entry.wrong("shape", shape, "four numbers: batch, heads, queries, keys")
        allowed = {*ALWAYS[kind], *SOMETIMES[kind]}
        if len(set(tensors)) < len(tensors) or not set(ALWAYS[kind]) <= set(tensors) <= allowed:
            raise entry.wrong("tensors", tensors, f"{', '.join(ALWAYS[kind])} and what else goes with them")
        batch, heads, queries, keys = shape
        numbers = tuple(entry.wholes("heads", 0, MAX_SIZE))
        if len(numbers) != heads or (kind == "dense" and numbers != tuple(range(heads))):
            raise entry.wrong("heads", list(numbers), f"the numbers of {heads} heads")
        return cls(name, kind, cross, (batch, heads, queries, keys), numbers, tensors, where)


def restore(header: Header, entry: Entry, tensors: Mapping[str, Tensor], rules: Rules) -> AnyLayer:
    """The layer again; takes what is left of its entry."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() == (name in COUNTS):
            wanted = "counts" if name in COUNTS else "floating point numbers"
            raise TraceError(f"{header.where}: {name} is {tensor.dtype}, but has to hold {wanted}")
    if header.kind == "matrix":
        layer = _restored_matrix(header, entry, tensors, rules)
    elif header.kind == "dense":
        _expect(header, "weights", tensors["weights"], header.shape)
        if header.cross:
            raise entry.wrong("cross", True, "false where weights were already there")
        layer = DenseLayer(header.name, tensors["weights"])
    else:
        layer = _restored_summary(header, entry, tensors)
    entry.finish()
    return layer


def _restored_matrix(header: Header, entry: Entry, tensors: Mapping[str, Tensor], rules: Rules) -> Layer:
    batch, heads, queries, keys = header.shape
    query, key, value, lse = (tensors.get(name) for name in ("query", "key", "value", "lse"))
    assert query is not None
    assert key is not None
    _expect(header, "query", query, (batch, heads, queries, None))
    _expect(header, "key", key, (batch, None, keys, query.shape[3]))
    if value is not None:
        _expect(header, "value", value, (*key.shape[:3], None))
    if lse is not None:
        _expect(header, "lse", lse, (batch, heads, queries))
    place, score = entry.whole("mask"), entry.optional_whole("score", 0)
    call = Call(
        query=query,
        key=key,
        value=value,
        lse=lse,
        mask=rules.mask(place),
        score_mod=None if score is None else rules.score(score),
        scale=entry.optional_number("scale"),
        row=entry.whole("row"),
        column=entry.whole("column"),
        heads=header.heads,
    )
    rules.check(place, Sizes(*header.shape), header.where)
    _check_rule(header, call)
    return Layer(header.name, call, cross=header.cross)


def _check_rule(header: Header, call: Call) -> None:
    """Whether everything but the mask makes an attention."""
    try:
        rule = make_rule(
            sign(call.query, call.key, call.key), mask=Full(), scale=call.scale, score_mod=call.score_mod, dropout=0.0
        )
    except (ValueError, TypeError, ArithmeticError) as error:
        raise TraceError(f"{header.where}: its tensors and scores make no attention: {str(error)[:300]}") from error
    if not math.isfinite(rule.scale):
        raise TraceError(f"{header.where}: its scale and temperatures together are {rule.scale}")


def _restored_summary(header: Header, entry: Entry, tensors: Mapping[str, Tensor]) -> StatisticsLayer:
    batch, heads, queries, keys = header.shape
    summed = {name: tensor for name, tensor in tensors.items() if name != "begins"}
    bins, pairings = tuple(summed["bin_sums"].shape[2:]), summed["matched_weight"].shape[2]
    lines = dict.fromkeys(("received", "visible_queries"), (keys,))
    lines |= {"bin_sums": (None, None), "visible_cells": bins} | dict.fromkeys(
        ("matched_weight", "num_matches"), (pairings, queries)
    )
    for name, tensor in summed.items():
        line = lines.get(name, (queries,))
        _expect(header, name, tensor, (batch, heads, *line))
    names = _pairings(entry, pairings)
    begins = tensors.get("begins")
    if (begins is None) == ("start" in names):
        raise entry.wrong("pairings", names, "with a start where the beginnings of documents are kept, and only there")
    if begins is not None:
        _expect(header, "begins", begins, (batch, keys))
    return StatisticsLayer.restored(
        header.name, header.cross, header.shape, header.heads, Summary(**summed), pairings=names, begins=begins
    )


def _pairings(entry: Entry, count: int) -> tuple[str, ...]:
    """The names of so many pairings; folders of before pairings were kept have neither."""
    if "pairings" not in entry.names():
        return ()
    names = tuple(entry.texts("pairings"))
    if len(names) != count or len(set(names)) < count or not set(names) <= set(NAMES):
        raise entry.wrong("pairings", list(names), f"the names of {count} pairings, of {', '.join(NAMES)}")
    return names


def _expect(header: Header, name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    found = tuple(tensor.shape)
    if len(found) != len(shape) or any(want not in (None, got) for got, want in zip(found, shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise TraceError(f"{header.where}: {name} is {found}, but has to be ({wanted}) in a layer {header.shape}")
