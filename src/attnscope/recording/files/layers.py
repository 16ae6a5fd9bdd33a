"""Convert a layer of a trace to fields of trace.json and tensors of a file, and back.

In: a layer, or its fields and tensors, which may be damaged or malicious. Out: fields and tensors, or a layer whose
shapes, mask and scores are consistent; otherwise a `TraceError`.
Does not know: files. Memory: that of the layer; tensors are not copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from attnscope.attention import Full
from attnscope.attention.algebra import Sizes
from attnscope.attention.spec import make_spec, signature_of
from attnscope.errors import TraceError
from attnscope.matrix.summary import Summary
from attnscope.models.json_fields import Fields
from attnscope.recording.call import Call
from attnscope.recording.files.expressions import ExpressionReader, ExpressionWriter, finite
from attnscope.recording.files.tensors import MAX_SIZE
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.statistics import StatisticsLayer
from attnscope.recording.token_pairs import NAMES

AnyLayer = Layer | StatisticsLayer | DenseLayer

REQUIRED = {"matrix": ("query", "key"), "dense": ("weights",), "statistics": Summary._fields}
OPTIONAL = {"matrix": ("value", "lse"), "dense": (), "statistics": ("begins",)}
"""The required and the optional tensors of each kind of layer."""

COUNTS = ("visible_cells", "visible_keys", "visible_queries", "num_matches", "begins")
"""The integer tensors among them."""


class EncodedLayer(NamedTuple):
    """What is written of a layer."""

    entry: dict[str, Any]
    tensors: dict[str, Tensor]


def encode_layer(name: str, layer: AnyLayer, expressions: ExpressionWriter) -> EncodedLayer:
    """What to write of a layer."""
    if isinstance(layer, Layer):
        kind, (more, tensors) = "matrix", _encode_call(layer.merge_calls(), expressions)
    elif isinstance(layer, DenseLayer):
        kind, more, tensors = "dense", {}, {"weights": layer.weights}
    else:
        kind, (more, tensors) = "statistics", _encode_statistics(layer)
    about = {"name": name, "kind": kind, "cross": bool(layer.cross), "shape": [int(size) for size in layer.shape]}
    about["heads"] = [int(head) for head in layer.heads]
    return EncodedLayer({**about, "tensors": list(tensors), **more}, tensors)


def _encode_call(call: Call, expressions: ExpressionWriter) -> EncodedLayer:
    tensors = {"query": call.query, "key": call.key, "value": call.value, "lse": call.lse}
    entry = {
        "scale": None if call.scale is None else finite(call.scale, "a layer"),
        "row": int(call.row),
        "column": int(call.column),
        "mask": expressions.mask(call.mask),
        "score": None if call.score_mod is None or not call.score_mod.parts else expressions.score(call.score_mod),
    }
    return EncodedLayer(entry, {name: tensor for name, tensor in tensors.items() if tensor is not None})


def _encode_statistics(layer: StatisticsLayer) -> EncodedLayer:
    tensors = layer.summary()._asdict() | ({} if layer.begins is None else {"begins": layer.begins})
    return EncodedLayer({"pairings": list(layer.pairings)}, tensors)


class Header(NamedTuple):
    """The fields that every kind of layer has."""

    name: str
    kind: str
    cross: bool
    shape: tuple[int, int, int, int]
    heads: tuple[int, ...]
    tensors: list[str]
    source: str

    @classmethod
    def read(cls, fields: Fields, source: str) -> Header:
        """Read the fields from an object in trace.json."""
        name, kind, cross = fields.string("name"), fields.string("kind"), fields.flag("cross")
        if kind not in REQUIRED:
            raise fields.invalid("kind", kind, f"one of {', '.join(REQUIRED)}")
        shape, tensors = fields.integers("shape", maximum=MAX_SIZE), fields.strings("tensors")
        if len(shape) != 4:
            raise fields.invalid("shape", shape, "four numbers: batch, heads, queries, keys")
        allowed = {*REQUIRED[kind], *OPTIONAL[kind]}
        if len(set(tensors)) < len(tensors) or not set(REQUIRED[kind]) <= set(tensors) <= allowed:
            raise fields.invalid(
                "tensors",
                tensors,
                f"{', '.join(REQUIRED[kind])}, optionally {', '.join(OPTIONAL[kind]) or 'nothing else'}",
            )
        batch, heads, queries, keys = shape
        numbers = tuple(fields.integers("heads", maximum=MAX_SIZE))
        if len(numbers) != heads or (kind == "dense" and numbers != tuple(range(heads))):
            raise fields.invalid("heads", list(numbers), f"the numbers of {heads} heads")
        return cls(name, kind, cross, (batch, heads, queries, keys), numbers, tensors, source)


def decode_layer(
    header: Header, fields: Fields, tensors: Mapping[str, Tensor], expressions: ExpressionReader
) -> AnyLayer:
    """Build a layer from its tensors and the remaining fields."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() == (name in COUNTS):
            wanted = "integers" if name in COUNTS else "floating point numbers"
            raise TraceError(f"{header.source}: {name}: expected {wanted}, got {tensor.dtype}")
    if header.kind == "matrix":
        layer = _decode_matrix(header, fields, tensors, expressions)
    elif header.kind == "dense":
        _expect(header, "weights", tensors["weights"], header.shape)
        if header.cross:
            raise fields.invalid("cross", True, "false for a layer of dense weights")
        layer = DenseLayer(header.name, tensors["weights"])
    else:
        layer = _decode_statistics(header, fields, tensors)
    fields.finish()
    return layer


def _decode_matrix(
    header: Header, fields: Fields, tensors: Mapping[str, Tensor], expressions: ExpressionReader
) -> Layer:
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
    mask, score = fields.integer("mask"), None if fields.is_null("score") else fields.integer("score")
    call = Call(
        query=query,
        key=key,
        value=value,
        lse=lse,
        mask=expressions.mask(mask),
        score_mod=None if score is None else expressions.score(score),
        scale=None if fields.is_null("scale") else fields.number("scale", minimum=-math.inf),
        row=fields.integer("row"),
        column=fields.integer("column"),
        heads=header.heads,
    )
    expressions.check(mask, Sizes(*header.shape), header.source)
    _check_rule(header, call)
    return Layer(header.name, call, cross=header.cross)


def _check_rule(header: Header, call: Call) -> None:
    """Raise TraceError unless tensors, scale and scores fit each other."""
    try:
        rule = make_spec(
            signature_of(call.query, call.key, call.key),
            mask=Full(),
            scale=call.scale,
            score_mod=call.score_mod,
            dropout=0.0,
        )
    except (ValueError, TypeError, ArithmeticError) as error:
        raise TraceError(f"{header.source}: inconsistent tensors or scores: {str(error)[:300]}") from error
    if not math.isfinite(rule.scale):
        raise TraceError(f"{header.source}: expected a finite scale after temperatures, got {rule.scale}")


def _decode_statistics(header: Header, fields: Fields, tensors: Mapping[str, Tensor]) -> StatisticsLayer:
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
    names = _pairings(fields, pairings)
    begins = tensors.get("begins")
    if (begins is None) == ("start" in names):
        raise fields.invalid("pairings", names, "'start' exactly if there is a tensor 'begins'")
    if begins is not None:
        _expect(header, "begins", begins, (batch, keys))
    return StatisticsLayer.from_summary(
        header.name, header.cross, header.shape, header.heads, Summary(**summed), pairings=names, begins=begins
    )


def _pairings(fields: Fields, count: int) -> tuple[str, ...]:
    """The names of `count` pairings; older traces have none."""
    if "pairings" not in fields:
        return ()
    names = tuple(fields.strings("pairings"))
    if len(names) != count or len(set(names)) < count or not set(names) <= set(NAMES):
        raise fields.invalid("pairings", list(names), f"the names of {count} pairings, of {', '.join(NAMES)}")
    return names


def _expect(header: Header, name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    found = tuple(tensor.shape)
    if len(found) != len(shape) or any(want not in (None, got) for got, want in zip(found, shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise TraceError(f"{header.source}: {name}: expected ({wanted}) in a layer {header.shape}, got {found}")
