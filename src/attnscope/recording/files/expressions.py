"""Masks and scores as a list of nodes for JSON, and the tensors that they name.

In: masks and scores of any number of layers. Out: nodes, each of which may point at nodes before it, and tensors by
name. What several layers share stands there once: the same tensor has one name, and what says the same is one node.
Does not know: files, layers. Memory: the nodes; tensors are held and not copied.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

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
)
from attnscope.attention.algebra import And, Mask, Not, Or
from attnscope.attention.masks import DenseMask
from attnscope.attention.scores import DistanceBias, ScoreChain, ScoreMod, T5Bias
from attnscope.errors import UnsupportedError
from attnscope.recording.layers.step_masks import StackedMask

MAX_DEPTH = 64  # of expressions in expressions

Node = dict[str, Any]


class Expressions:
    """Takes masks and scores one after the other and gives the place of each in `nodes`.

    >>> expressions = Expressions()
    >>> expressions.mask(Causal() | Prefix(3))
    2
    >>> expressions.mask(Causal())
    0
    >>> expressions.nodes[2]
    {'kind': 'or', 'first': 0, 'second': 1}
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self._places: dict[str, int] = {}
        self._seen: dict[int, tuple[object, int]] = {}  # by id, with the object itself: an id is free when it dies
        self._names: dict[object, str] = {}
        self._depth = 0

    def mask(self, mask: Mask) -> int:
        """The place of a mask."""
        return self._place(mask, MASKS)

    def score(self, score: ScoreMod) -> int:
        """The place of a score; a chain of one is that one."""
        alone = score.parts[0] if len(score.parts) == 1 else score
        return self._place(alone, SCORES)

    def _place(self, given: Mask | ScoreMod, writers: dict[type, Callable[[Any, Expressions], Node]]) -> int:
        if id(given) in self._seen:
            return self._seen[id(given)][1]
        writer = writers.get(type(given))
        if writer is None:
            raise UnsupportedError(
                f"save: {type(given).__name__} is a mask or score that a trace on disk has no words for; those of "
                "attnscope.attention and their combinations can be saved"
            )
        if self._depth >= MAX_DEPTH:
            raise UnsupportedError(f"save: a mask of more than {MAX_DEPTH} combinations inside each other; simplify it")
        self._depth += 1
        try:
            node = writer(given, self)
        finally:
            self._depth -= 1
        place = self._place_of(node)
        self._seen[id(given)] = given, place
        return place

    def _place_of(self, node: Node) -> int:
        text = json.dumps(node)
        if text not in self._places:
            self._places[text] = len(self.nodes)
            self.nodes.append(node)
        return self._places[text]

    def tensor(self, tensor: Tensor) -> str:
        """The name of a tensor that somebody holds."""
        tensor = tensor.detach()
        key = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        return self._name(key, tensor)

    def made(self, tensor: Tensor) -> str:
        """The name of a tensor that was made for the file: equal ones have the same."""
        return self._name((hashlib.sha256(tensor.numpy().tobytes()).digest(), tensor.shape), tensor)

    def broadcast(self, tensor: Tensor) -> str:
        """The name of a tensor whose axes of length 1 speak for all; it is kept so where it was expanded."""
        for axis in range(tensor.dim()):
            if tensor.shape[axis] > 1 and tensor.stride(axis) == 0:
                tensor = tensor.narrow(axis, 0, 1)
        return self.tensor(tensor)

    def _name(self, key: object, tensor: Tensor) -> str:
        if key not in self._names:
            self._names[key] = f"{len(self.tensors):06}"
            self.tensors[self._names[key]] = tensor
        return self._names[key]


def _band(mask: Causal | Window, _: Expressions) -> Node:
    reach = {"before": mask.before, "after": mask.after} if isinstance(mask, Window) else {}
    return {"kind": "window" if reach else "causal", **reach, "offset": _listed(mask.offset)}


def _prefix(mask: Prefix, _: Expressions) -> Node:
    return {"kind": "prefix", "length": _listed(mask.length)}


def _documents(mask: Documents, into: Expressions) -> Node:
    queries = None if mask.query_ids is None else into.tensor(mask.query_ids)
    return {"kind": "documents", "ids": into.tensor(mask.ids), "query_ids": queries}


def _padding(mask: Padding, into: Expressions) -> Node:
    if mask.keep is None:
        return {"kind": "lengths", "lengths": list(mask.lengths or ())}
    return {"kind": "padding", "keep": into.tensor(mask.keep)}


def _dense(mask: DenseMask, into: Expressions) -> Node:
    return {"kind": "booleans", "attend": into.broadcast(mask.attend)}


def _pair(mask: And | Or, into: Expressions) -> Node:
    kind = "and" if isinstance(mask, And) else "or"
    return {"kind": kind, "first": into.mask(mask.first), "second": into.mask(mask.second)}


def _not(mask: Not, into: Expressions) -> Node:
    return {"kind": "not", "inner": into.mask(mask.inner)}


def _stacked(mask: StackedMask, into: Expressions) -> Node:
    """The steps as a table (steps, 5): rows, columns, and which of a few masks; there may be 100,000 of them."""
    places = [into.mask(step.mask) for step in mask.steps]
    masks = list(dict.fromkeys(places))
    at = {place: number for number, place in enumerate(masks)}
    rows = [
        (step.top, step.bottom, step.left, step.right, at[place])
        for step, place in zip(mask.steps, places, strict=True)
    ]
    table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 5)
    return {"kind": "stacked", "masks": masks, "steps": into.made(table)}


def _one_number(score: Softcap | Temperature, _: Expressions) -> Node:
    if isinstance(score, Softcap):
        return {"kind": "softcap", "cap": finite(score.cap, score)}
    return {"kind": "temperature", "value": finite(score.value, score)}


def _alibi(score: ALiBi, into: Expressions) -> Node:
    return {"kind": "alibi", "slopes": into.tensor(score.slopes), "offset": _whole(score.offset)}


def _bias(score: Bias, into: Expressions) -> Node:
    return {"kind": "bias", "values": into.broadcast(score.values)}


def _relative(score: T5Bias, into: Expressions) -> Node:
    return {
        "kind": "t5",
        "table": into.tensor(score.table),
        "bidirectional": bool(score.bidirectional),
        "max_distance": _whole(score.max_distance),
        "offset": _whole(score.offset),
    }


def _by_distance(score: DistanceBias, into: Expressions) -> Node:
    place = {"first": _whole(score.first), "offset": _whole(score.offset)}
    return {"kind": "by distance", "values": into.tensor(score.values), **place}


def _sinks(score: Sinks, into: Expressions) -> Node:
    return {"kind": "sinks", "logits": into.tensor(score.logits)}


def _chain(score: ScoreChain, into: Expressions) -> Node:
    return {"kind": "chain", "parts": [into.score(part) for part in score.parts]}


# By the very type: a class of somebody else's that derives from one of these may mean something else.
MASKS: dict[type, Callable[[Any, Expressions], Node]] = {
    Full: lambda *_: {"kind": "full"},
    Causal: _band,
    Window: _band,
    Prefix: _prefix,
    Documents: _documents,
    Padding: _padding,
    DenseMask: _dense,
    And: _pair,
    Or: _pair,
    Not: _not,
    StackedMask: _stacked,
}
SCORES: dict[type, Callable[[Any, Expressions], Node]] = {
    Softcap: _one_number,
    Temperature: _one_number,
    ALiBi: _alibi,
    Bias: _bias,
    T5Bias: _relative,
    DistanceBias: _by_distance,
    Sinks: _sinks,
    ScoreChain: _chain,
}


def finite(value: object, of: object) -> float:
    """A number for JSON, which knows no infinity and no NaN."""
    if not isinstance(value, Real) or not math.isfinite(value):
        raise UnsupportedError(f"save: {of} has the number {value}, and only finite numbers can be saved")
    return float(value)


def _whole(value: object) -> int | None:
    if value is not None and not isinstance(value, Integral):
        raise UnsupportedError(f"save: a mask or score has {value!r} where whole numbers can be saved")
    return None if value is None else int(value)


def _listed(value: int | tuple[int, ...] | None) -> int | list[int] | None:
    return list(value) if isinstance(value, tuple) else value
