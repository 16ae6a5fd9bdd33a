"""Masks and score modifiers as JSON nodes and tensors, written and read by one table of codecs.

In: masks and scores of any number of layers. Out: nodes and named tensors, and from these, which may be damaged or
hostile, the masks and scores again. A node refers to earlier nodes by their index, so there are no cycles; depth and
size are limited. Equal nodes and tensors are stored once and become one object again.
Does not know: files, layers. Memory: the nodes; Padding and Documents copy their O(n) tensors, others are shared.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from numbers import Integral, Real
from operator import add
from typing import Any, NamedTuple

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
from attnscope.attention.algebra import And, Mask, Not, Or, Sizes
from attnscope.attention.masks import DenseMask
from attnscope.attention.scores import DistanceBias, ScoreChain, ScoreMod, T5Bias
from attnscope.errors import ShapeError, TraceError, UnsupportedError
from attnscope.models.json_fields import MAX_INTEGER
from attnscope.recording.files.manifest import trace_fields
from attnscope.recording.layers.step_masks import StackedMask, Step

MAX_NODES = 200_000
MAX_DEPTH = 64  # of nested expressions
MAX_PARTS = 2**22  # of one expression; a shared node counts once per use, as checks visit it once per use
MAX_CHECKED = 2**24  # parts of all layers together
MAX_STEPS = 2**20  # of a StackedMask
MAX_COPIED = 2**30  # elements of a tensor that a mask copies
MAX_SCORES = 256  # of a chain

Node = dict[str, Any]


class ExpressionWriter:
    """Collects masks and scores as `nodes` and `tensors`, and returns the index of each.

    >>> writer = ExpressionWriter()
    >>> writer.mask(Causal() | Prefix(3))
    2
    >>> writer.mask(Causal())
    0
    >>> writer.nodes[2]
    {'kind': 'or', 'first': 0, 'second': 1}
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self._indices: dict[str, int] = {}
        self._written: dict[int, tuple[object, int]] = {}  # by id, with the object itself so that the id stays taken
        self._names: dict[object, str] = {}
        self._depth = 0

    def mask(self, mask: Mask) -> int:
        """Write a mask and return its index."""
        return self._write(mask)

    def score(self, score: ScoreMod) -> int:
        """Write a score and return its index; a chain of one is written as that one."""
        return self._write(score.parts[0] if len(score.parts) == 1 else score)

    def _write(self, expression: Mask | ScoreMod) -> int:
        if id(expression) in self._written:
            return self._written[id(expression)][1]
        if self._depth >= MAX_DEPTH:
            raise UnsupportedError(f"save: expected at most {MAX_DEPTH} nested masks, got more; simplify the mask")
        kind = _kind_of(expression)
        self._depth += 1
        try:
            node = {"kind": kind, **CODECS[kind].encode(expression, self)}
        finally:
            self._depth -= 1
        index = self._indices.setdefault(json.dumps(node), len(self.nodes))
        if index == len(self.nodes):
            self.nodes.append(node)
        self._written[id(expression)] = expression, index
        return index

    def tensor(self, tensor: Tensor) -> str:
        """Name a tensor that exists; the same memory has the same name."""
        tensor = tensor.detach()
        return self._name((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device), tensor)

    def new_tensor(self, tensor: Tensor) -> str:
        """Name a tensor that was built for the file; equal values have the same name."""
        return self._name((hashlib.sha256(tensor.numpy().tobytes()).digest(), tensor.shape), tensor)

    def _name(self, key: object, tensor: Tensor) -> str:
        if key not in self._names:
            self._names[key] = f"{len(self.tensors):06}"
            self.tensors[self._names[key]] = tensor
        return self._names[key]


class _Decoded(NamedTuple):
    """A mask or score from a node, and its size as a tree."""

    expression: Mask | ScoreMod
    depth: int
    parts: int


class ExpressionReader:
    """The masks and scores of untrusted nodes, by index.

    Args:
        nodes: What `ExpressionWriter.nodes` may be.
        tensors: The tensors that the nodes refer to, by name.
        source: The file, for error messages.

    Raises:
        TraceError: A node is invalid or too large.
    """

    def __init__(self, nodes: Sequence[object], tensors: Mapping[str, Tensor], source: str) -> None:
        self.tensors, self._source = tensors, source
        self._decoded: list[_Decoded] = []
        self._checked: set[tuple[int, Sizes]] = set()
        self._parts_checked = 0
        for index, node in enumerate(nodes):
            self._decoded.append(self._decode(node, f"{source}: expression {index}"))

    def mask(self, index: int) -> Mask:
        """The mask with an index."""
        return self.find(index, Mask).expression  # pyright: ignore[reportReturnType]

    def score(self, index: int) -> ScoreMod:
        """The score with an index."""
        return self.find(index, ScoreMod).expression  # pyright: ignore[reportReturnType]

    def check(self, index: int, sizes: Sizes, source: str) -> None:
        """Raise TraceError unless a mask fits an attention of these sizes; repeated checks are free."""
        if (index, sizes) in self._checked:
            return
        self._parts_checked += self._decoded[index].parts
        if self._parts_checked > MAX_CHECKED:
            raise TraceError(f"{source}: expected masks of at most {MAX_CHECKED:,} parts in all layers, got more")
        try:
            self.mask(index).check(sizes)
        except (ShapeError, ValueError) as error:
            raise TraceError(f"{source}: the mask does not fit {tuple(sizes)}: {str(error)[:300]}") from error
        self._checked.add((index, sizes))

    def find(self, index: int, cls: type[Mask] | type[ScoreMod]) -> _Decoded:
        """The decoded mask or score with an index."""
        if not 0 <= index < len(self._decoded) or not isinstance(self._decoded[index].expression, cls):
            raise TraceError(f"{self._source}: expected an earlier {cls.__name__.lower()}, got expression {index}")
        return self._decoded[index]

    def _decode(self, found: object, source: str) -> _Decoded:
        node = _NodeReader(found, self, source)
        kind = node.fields.string("kind")
        if kind not in CODECS:
            raise node.fields.invalid("kind", kind, f"one of {', '.join(CODECS)}")
        try:
            expression = CODECS[kind].decode(node)
        except TraceError:
            raise
        except (ValueError, TypeError, RuntimeError) as error:
            raise TraceError(f"{source}: invalid {kind}: {str(error)[:300]}") from error
        node.fields.finish()
        decoded = _Decoded(expression, node.depth + 1, node.parts + 1)
        if decoded.depth > MAX_DEPTH or decoded.parts > MAX_PARTS:
            raise TraceError(
                f"{source}: expected at most {MAX_PARTS:,} parts in {MAX_DEPTH} levels, got {decoded.parts:,} in "
                f"{decoded.depth}"
            )
        return decoded


class _NodeReader:
    """The fields of one node, and the size of what they refer to."""

    def __init__(self, found: object, reader: ExpressionReader, source: str) -> None:
        self.fields = trace_fields(found, source)
        self._reader = reader
        self.depth = self.parts = 0

    def child(self, index: int, cls: type[Mask] | type[ScoreMod], uses: int = 1) -> Any:
        decoded = self._reader.find(index, cls)
        self.depth, self.parts = max(self.depth, decoded.depth), self.parts + decoded.parts * uses
        return decoded.expression

    def tensor(self, name: str) -> Tensor:
        label = self.fields.string(name)
        if label not in self._reader.tensors:
            raise self.fields.invalid(name, label, "the name of a tensor")
        return self._reader.tensors[label]


class Field(NamedTuple):
    """How one attribute of a mask or score is read from a node, and written to it."""

    decode: Callable[[_NodeReader, str], Any]
    encode: Callable[[Any, ExpressionWriter], Any]
    is_tensor: bool = False


def _optional(field: Field) -> Field:
    return field._replace(
        decode=lambda node, name: None if node.fields.is_null(name) else field.decode(node, name),
        encode=lambda value, writer: None if value is None else field.encode(value, writer),
    )


def _integer(minimum: int = -MAX_INTEGER) -> Field:
    def encode(value: Any, _: ExpressionWriter) -> int:
        if not isinstance(value, Integral):
            raise UnsupportedError(f"save: expected an integer in a mask or score, got {value!r}")
        return int(value)

    return Field(lambda node, name: node.fields.integer(name, minimum=minimum), encode)


def _integers(minimum: int = -MAX_INTEGER, *, single: bool = True) -> Field:
    """One integer per batch row, or where `single` is possible, one for all."""

    def decode(node: _NodeReader, name: str) -> int | list[int]:
        if single and not isinstance(node.fields.found.get(name), list):
            return node.fields.integer(name, minimum=minimum)
        found = node.fields.integers(name, minimum=minimum)
        if not single and not found:
            raise node.fields.invalid(name, found, "an integer for each batch row")
        node.parts += len(found)
        return found

    return Field(decode, lambda value, _: list(value) if isinstance(value, tuple) else value)


def _tensor(*, floating: bool = False, axes: int | None = None, copied: bool = False) -> Field:
    """A tensor of a dtype and number of axes; `copied` limits its size."""

    def decode(node: _NodeReader, name: str) -> Tensor:
        tensor = node.tensor(name)
        found = f"{tensor.dtype} {tuple(tensor.shape)}"
        if (floating and not tensor.is_floating_point()) or axes not in (None, tensor.dim()):
            expected = "a floating point tensor" + ("" if axes is None else f" with {axes} axes")
            raise node.fields.invalid(name, found, expected)
        if copied and tensor.numel() > MAX_COPIED:  # a sparse file may claim any size
            raise node.fields.invalid(name, found, f"a tensor of at most {MAX_COPIED:,} elements")
        return tensor

    return Field(decode, lambda value, writer: writer.tensor(value), is_tensor=True)


def _encode_broadcast(tensor: Tensor, writer: ExpressionWriter) -> str:
    """Write expanded axes with length 1."""
    for axis in range(tensor.dim()):
        if tensor.shape[axis] > 1 and tensor.stride(axis) == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return writer.tensor(tensor)


def _decode_scores(node: _NodeReader, name: str) -> list[ScoreMod]:
    scores = [node.child(index, ScoreMod) for index in node.fields.integers(name)]
    if not 0 < node.parts <= MAX_SCORES:
        raise node.fields.invalid(name, f"{node.parts} scores", f"from one to {MAX_SCORES}")
    return scores


OFFSET = _optional(_integer())
OFFSETS = _optional(_integers())
NUMBER = Field(
    lambda node, name: node.fields.number(name, minimum=-math.inf), lambda value, _: finite(value, "a score")
)
FLAG = Field(lambda node, name: node.fields.flag(name), lambda value, _: bool(value))
MASK = Field(lambda node, name: node.child(node.fields.integer(name), Mask), lambda value, writer: writer.mask(value))
SCORES = Field(_decode_scores, lambda value, writer: [writer.score(part) for part in value])


class Codec:
    """Writes a mask or score as the fields of a node, one per attribute, and builds it from them again."""

    def __init__(self, cls: type[Any], build: Callable[..., Mask | ScoreMod] | None = None, **fields: Field) -> None:
        self.cls, self.fields = cls, fields
        self._build = build or cls

    def encode(self, value: Any, writer: ExpressionWriter) -> Node:
        """The fields of a node."""
        return {name: field.encode(getattr(value, name), writer) for name, field in self.fields.items()}

    def decode(self, node: _NodeReader) -> Mask | ScoreMod:
        """The mask or score of a node."""
        return self._build(**{name: field.decode(node, name) for name, field in self.fields.items()})


class _StepsCodec(Codec):
    """The steps as a table (steps, 5) of rows, columns and the number of a mask; there may be 100,000 of them."""

    def encode(self, value: StackedMask, writer: ExpressionWriter) -> Node:
        indices = [writer.mask(step.mask) for step in value.steps]
        masks = list(dict.fromkeys(indices))
        number = {index: place for place, index in enumerate(masks)}
        rows = [
            (step.top, step.bottom, step.left, step.right, number[index])
            for step, index in zip(value.steps, indices, strict=True)
        ]
        table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 5)
        return {"masks": masks, "steps": writer.new_tensor(table)}

    def decode(self, node: _NodeReader) -> Mask:
        indices, table = node.fields.integers("masks"), node.tensor("steps")
        if table.dtype != torch.int64 or table.dim() != 2 or table.shape[1] != 5 or not 0 < len(table) <= MAX_STEPS:
            found = f"{table.dtype} {tuple(table.shape)}"
            raise node.fields.invalid("steps", found, f"int64 (steps, 5) of at most {MAX_STEPS:,} steps")
        top, bottom, left, right, number = table.unbind(1)
        ordered = (top >= 0) & (bottom >= top) & (left >= 0) & (right >= left) & (right <= MAX_INTEGER)
        if not bool((ordered & (bottom <= MAX_INTEGER) & (number >= 0) & (number < len(indices))).all()):
            raise node.fields.invalid("steps", "a table", "ordered rows and columns, and the number of a mask")
        uses = torch.bincount(number, minlength=len(indices)).tolist()
        masks = [node.child(index, Mask, count) for index, count in zip(indices, uses, strict=True)]
        return StackedMask(tuple(Step(masks[at], *rectangle) for *rectangle, at in table.tolist()))


def _build_padding(keep: Tensor) -> Mask:
    if keep.dtype != torch.bool:
        raise ValueError(f"keep: expected torch.bool, got {keep.dtype}")
    return Padding(keep=keep)


def _build_t5(table: Tensor, bidirectional: bool, max_distance: int, offset: int | None) -> ScoreMod:
    exact = table.shape[0] // (4 if bidirectional else 2)  # distances with a bucket of their own
    if not 0 < exact < max_distance:
        raise ValueError(f"table: expected buckets for distances up to {max_distance}, got {tuple(table.shape)}")
    return Bias.t5(table, bidirectional=bidirectional, max_distance=max_distance, offset=offset)


CODECS: dict[str, Codec] = {
    "full": Codec(Full),
    "causal": Codec(Causal, offset=OFFSETS),
    "window": Codec(Window, before=_integer(0), after=_integer(0), offset=OFFSETS),
    "prefix": Codec(Prefix, length=_integers()),
    "documents": Codec(Documents, ids=_tensor(copied=True), query_ids=_optional(_tensor(copied=True))),
    "lengths": Codec(Padding, lengths=_integers(0, single=False)),
    "padding": Codec(Padding, _build_padding, keep=_tensor(copied=True)),
    "booleans": Codec(DenseMask, from_bool, attend=_tensor()._replace(encode=_encode_broadcast)),
    "and": Codec(And, first=MASK, second=MASK),
    "or": Codec(Or, first=MASK, second=MASK),
    "not": Codec(Not, inner=MASK),
    "stacked": _StepsCodec(StackedMask, steps=_tensor()),
    "softcap": Codec(Softcap, cap=NUMBER),
    "temperature": Codec(Temperature, value=NUMBER),
    "alibi": Codec(ALiBi, slopes=_tensor(floating=True, axes=1), offset=OFFSET),
    "bias": Codec(Bias, values=_tensor(floating=True)._replace(encode=_encode_broadcast)),
    "t5": Codec(
        T5Bias,
        _build_t5,
        table=_tensor(floating=True, axes=2),
        bidirectional=FLAG,
        max_distance=_integer(1),
        offset=OFFSET,
    ),
    "by distance": Codec(DistanceBias, values=_tensor(floating=True, axes=2), first=_integer(), offset=OFFSET),
    "sinks": Codec(Sinks, logits=_tensor(floating=True, axes=1)),
    "chain": Codec(ScoreChain, lambda parts: reduce(add, parts), parts=SCORES),
}
"""By the `kind` of a node."""

_KINDS = {codec.cls: kind for kind, codec in CODECS.items()}
_TENSOR_FIELDS = {name for codec in CODECS.values() for name, field in codec.fields.items() if field.is_tensor}


def _kind_of(expression: Mask | ScoreMod) -> str:
    """The kind of exactly this class: a subclass may have another meaning."""
    if type(expression) is Padding:
        return "lengths" if expression.keep is None else "padding"
    if type(expression) not in _KINDS:
        raise UnsupportedError(
            f"save: {type(expression).__name__} cannot be saved; use the masks and scores of attnscope.attention and "
            "their combinations"
        )
    return _KINDS[type(expression)]


def tensor_names(nodes: Sequence[object]) -> Collection[str]:
    """The names of all tensors that the nodes refer to."""
    named = (node.get(field) for node in nodes if isinstance(node, dict) for field in _TENSOR_FIELDS)
    return {name for name in named if isinstance(name, str)}


def finite(value: object, owner: str) -> float:
    """A number as JSON can hold it; raises UnsupportedError if it is infinite or NaN."""
    if not isinstance(value, Real) or not math.isfinite(value):
        raise UnsupportedError(f"save: expected a finite number in {owner}, got {value}")
    return float(value)
