"""The masks, scores and sizes that every backend is judged on; each mask also as a plain sentence about (b, i, j)."""

from __future__ import annotations

import math

import pytest
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
from tests.attention.oracle import Case, Shape

SHAPES = {
    "square": Shape(2, 4, 4, 37, 37, 8, 8),
    "grouped heads": Shape(2, 6, 2, 41, 41, 8, 8),
    "one key head": Shape(1, 4, 1, 29, 29, 16, 16),
    "fewer queries": Shape(2, 2, 2, 13, 43, 8, 8),
    "more queries": Shape(2, 2, 1, 43, 13, 8, 8),
    "one query": Shape(2, 4, 2, 1, 31, 8, 8),
    "one key": Shape(1, 2, 2, 17, 1, 8, 8),
    "wide values": Shape(1, 2, 2, 23, 23, 8, 12),
    "narrow values": Shape(1, 2, 2, 23, 23, 12, 5),
}


def _position(shape: Shape, i: int) -> int:
    """Without an offset, the queries are the last of the keys."""
    return i + shape.keys - shape.queries


def _lengths(shape: Shape) -> list[int]:
    return [max(0, shape.keys - 11 * b) for b in range(shape.batch)]


def _ids(shape: Shape) -> list[list[int]]:
    """Documents of 7, 3, 1 and 10 tokens in turn; the second batch row is shifted."""
    pattern = [0] * 7 + [1] * 3 + [2] + [3] * 10
    long = [pattern[t % 21] + 4 * (t // 21) for t in range(shape.keys + 8)]
    return [long[5 * b : 5 * b + shape.keys] for b in range(shape.batch)]


def _query_id(shape: Shape, b: int, i: int) -> int:
    return _ids(shape)[b][_position(shape, i)] if shape.queries <= shape.keys else i % 4


def _documents(shape: Shape) -> Documents:
    if shape.queries <= shape.keys:
        return Documents(torch.tensor(_ids(shape)))
    rows = [[_query_id(shape, b, i) for i in range(shape.queries)] for b in range(shape.batch)]
    return Documents(torch.tensor(_ids(shape)), torch.tensor(rows))


def _scattered(shape: Shape) -> Tensor:
    """A key mask with many holes, in which the first keys of each row are missing, so that causal rows stay empty."""
    keep = torch.rand(shape.batch, shape.keys, generator=torch.Generator().manual_seed(5)) > 0.4
    keep[:, : min(3, shape.keys)] = False
    return keep


def _random(shape: Shape) -> Tensor:
    return torch.rand(shape.queries, shape.keys, generator=torch.Generator().manual_seed(7)) > 0.5


def _left(shape: Shape) -> list[list[bool]]:
    return [[j >= 5 * b for j in range(shape.keys)] for b in range(shape.batch)]


MASKS = [
    Case("full", lambda s: Full(), lambda s: lambda b, i, j: True),
    Case("causal", lambda s: Causal(), lambda s: lambda b, i, j: j <= _position(s, i)),
    Case("causal from upper left", lambda s: Causal(offset=0), lambda s: lambda b, i, j: j <= i),
    Case("causal far back", lambda s: Causal(offset=-6), lambda s: lambda b, i, j: j <= i - 6),
    Case(
        "causal, one offset a batch row",
        lambda s: Causal(offset=[2 + 3 * b for b in range(s.batch)]),
        lambda s: lambda b, i, j: j <= i + 2 + 3 * b,
    ),
    Case("window", lambda s: Window(5), lambda s: lambda b, i, j: _position(s, i) - 5 < j <= _position(s, i)),
    Case(
        "two-sided window",
        lambda s: Window(before=4, after=2),
        lambda s: lambda b, i, j: _position(s, i) - 4 <= j <= _position(s, i) + 2,
    ),
    Case(
        "prefix language model",
        lambda s: Causal() | Prefix(6),
        lambda s: lambda b, i, j: j <= _position(s, i) or j < 6,
    ),
    Case(
        "documents",
        _documents,
        lambda s: lambda b, i, j: _ids(s)[b][j] == _query_id(s, b, i),
    ),
    Case(
        "causal documents",
        lambda s: Causal() & _documents(s),
        lambda s: lambda b, i, j: j <= _position(s, i) and _ids(s)[b][j] == _query_id(s, b, i),
    ),
    Case("padding", lambda s: Padding(_lengths(s)), lambda s: lambda b, i, j: j < _lengths(s)[b]),
    Case(
        "causal with left padding",
        lambda s: Causal() & Padding(keep=torch.tensor(_left(s))),
        lambda s: lambda b, i, j: j <= _position(s, i) and j >= 5 * b,
    ),
    Case(
        "causal with scattered keys",
        lambda s: Causal() & Padding(keep=_scattered(s)),
        lambda s: lambda b, i, j: j <= _position(s, i) and bool(_scattered(s)[b, j]),
    ),
    Case(
        "window over scattered keys",
        lambda s: Window(4) & from_bool(drop=~_scattered(s)[:, None, None]),
        lambda s: lambda b, i, j: _position(s, i) - 4 < j <= _position(s, i) and bool(_scattered(s)[b, j]),
    ),
    Case(
        "all but the window",
        lambda s: ~Window(9) & Causal(),
        lambda s: lambda b, i, j: j <= _position(s, i) - 9,
    ),
    Case("the future", lambda s: ~Causal(), lambda s: lambda b, i, j: j > _position(s, i)),
    Case("nothing", lambda s: Causal() & ~Causal(), lambda s: lambda b, i, j: False),
    Case("any booleans", lambda s: from_bool(attend=_random(s)), lambda s: lambda b, i, j: bool(_random(s)[i, j])),
    Case("dropped booleans", lambda s: from_bool(drop=_random(s)), lambda s: lambda b, i, j: not _random(s)[i, j]),
    Case(
        "booleans or a window",
        lambda s: from_bool(attend=_random(s)) | Window(2),
        lambda s: lambda b, i, j: bool(_random(s)[i, j]) or _position(s, i) - 2 < j <= _position(s, i),
    ),
]


def _causal_sees(shape: Shape):
    return lambda b, i, j: j <= _position(shape, i)


def _away(scores: Tensor) -> Tensor:
    """|query position - key position|, (queries, keys)."""
    queries, keys = scores.shape[-2:]
    rows = torch.arange(queries)[:, None] + keys - queries
    return (rows - torch.arange(keys)[None, :]).abs().to(scores.dtype)


def _t5_bucket(distance: int, buckets: int, limit: int) -> int:
    """One-sided T5 bucket of a key `distance` before the query, by the book."""
    distance = max(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return distance
    grown = exact + int(math.log(distance / exact) / math.log(limit / exact) * (buckets - exact))
    return min(grown, buckets - 1)


LONGEST_DISTANCE = 1500


def _added_by_distance(scores: Tensor, values: Tensor) -> Tensor:
    queries, keys = scores.shape[-2:]
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    return scores + values.to(scores)[:, distance + LONGEST_DISTANCE]


def _t5_added(scores: Tensor, table: Tensor) -> Tensor:
    queries, keys = scores.shape[-2:]
    index = [[_t5_bucket(i + keys - queries - j, 8, 20) for j in range(keys)] for i in range(queries)]
    return scores + table[torch.tensor(index)].permute(2, 0, 1)


def _normal(*sizes: int, seed: int = 3, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SLOPES = {"slopes": lambda s: 0.3 * (1 + torch.arange(s.heads, dtype=torch.float64))}
SINKS = {"sinks": lambda s: _normal(s.heads)}
HEAD_BIAS = {"bias": lambda s: _normal(s.heads, s.queries, s.keys)}

SCORES = [
    Case(
        "softcap",
        lambda s: Causal(),
        _causal_sees,
        score=lambda p: Softcap(1.5),  # low enough that ordinary scores reach it
        formula=lambda scores, p: 1.5 * torch.tanh(scores / 1.5),
    ),
    Case(
        "alibi",
        lambda s: Causal(),
        _causal_sees,
        score=lambda p: ALiBi(p["slopes"]),
        formula=lambda scores, p: scores - p["slopes"][:, None, None] * _away(scores),
        parameters=SLOPES,
    ),
    Case(
        "bias of each head",
        lambda s: Full(),
        lambda s: lambda b, i, j: True,
        score=lambda p: Bias(p["bias"]),
        formula=lambda scores, p: scores + p["bias"],
        parameters=HEAD_BIAS,
    ),
    Case(
        "bias of each batch row and key",
        lambda s: Window(9),
        lambda s: lambda b, i, j: _position(s, i) - 9 < j <= _position(s, i),
        score=lambda p: Bias(p["bias"]),
        formula=lambda scores, p: scores + p["bias"],
        parameters={"bias": lambda s: _normal(s.batch, 1, 1, s.keys)},
    ),
    Case(
        "t5 bias",
        lambda s: Causal(),
        _causal_sees,
        score=lambda p: Bias.t5(p["table"], bidirectional=False, max_distance=20),
        formula=lambda scores, p: _t5_added(scores, p["table"]),
        parameters={"table": lambda s: _normal(8, s.heads)},
    ),
    Case(
        "bias by distance",
        lambda s: Causal(),
        _causal_sees,
        score=lambda p: Bias.by_distance(p["values"], first=-LONGEST_DISTANCE),
        formula=lambda scores, p: _added_by_distance(scores, p["values"]),
        parameters={"values": lambda s: _normal(s.heads, 2 * LONGEST_DISTANCE + 1)},
    ),
    Case(
        "sinks",
        lambda s: Window(6),
        lambda s: lambda b, i, j: _position(s, i) - 6 < j <= _position(s, i),
        score=lambda p: Sinks(p["sinks"]),
        parameters=SINKS,
    ),
    Case(
        "temperature before",
        lambda s: Causal(),
        _causal_sees,
        score=lambda p: Temperature(0.5) + Softcap(3.0),
        formula=lambda scores, p: 3.0 * torch.tanh(2.0 * scores / 3.0),
    ),
    Case(
        "everything in order",
        lambda s: Causal() & Padding(_lengths(s)),
        lambda s: lambda b, i, j: j <= _position(s, i) and j < _lengths(s)[b],
        score=lambda p: Softcap(2.0) + Sinks(p["sinks"]) + ALiBi(p["slopes"]) + Temperature(1.7) + Bias(p["bias"]),
        formula=lambda scores, p: (
            (2.0 * torch.tanh(scores / 2.0) - p["slopes"][:, None, None] * _away(scores)) / 1.7 + p["bias"]
        ),
        parameters=SLOPES | SINKS | HEAD_BIAS,
    ),
    Case(
        "everything in another order",
        lambda s: Causal(),
        _causal_sees,
        score=lambda p: Bias(p["bias"]) + ALiBi(p["slopes"]) + Softcap(2.0),
        formula=lambda scores, p: (
            2.0 * torch.tanh((scores + p["bias"] - p["slopes"][:, None, None] * _away(scores)) / 2.0)
        ),
        parameters=SLOPES | HEAD_BIAS,
    ),
]

CASES = [*MASKS, *SCORES]
NOT_FUSED = {case.name for case in SCORES if case.name != "sinks"} | {
    "any booleans",
    "dropped booleans",
    "booleans or a window",
}


def answers(cases: list[Case]) -> list:
    """Each backend with each of the cases that it answers; the fused backend refuses some, by name."""
    return [
        pytest.param(backend, case, id=f"{backend}-{case.name}")
        for backend in ("reference", "fused", "streaming")
        for case in cases
        if backend != "fused" or case.name not in NOT_FUSED
    ]
