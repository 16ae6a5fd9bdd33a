"""`find_heads`: which heads attend from some tokens to others, answered for all layers and heads at once.

In: a trace, and positions of queries, of keys, or of both; or a text such as "password is -> cobalt". Out: a table of
all heads, the strongest first, with exact weights. Only the requested rows or columns are computed: a row of all heads
takes O(n) time.
Does not know: models. Memory: one block of a layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import Cancelled, SettingError
from attnscope.heads.table import HeadTable
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace
from attnscope.recording.layers.statistics import StatisticsLayer

MAX_CELLS = 2**24
"""Weights of all heads of a layer that are read at once."""
ARROW = re.compile(r"\s*(?:->|→)\s*")
POSITIONS = re.compile(r"(-?\d+)(?:\s*\.\.\s*(-?\d+))?")

Positions = int | range | slice
Keys = Positions | Sequence[range]
"""Keys may be several ranges, such as the rows of a region of an image."""
StopCheck = Callable[[], bool]


class Link(NamedTuple):
    """Tokens that attend, and tokens that are attended to; None stands for all of them."""

    query: Positions | None
    key: Positions | None


def find_heads(
    trace: Trace,
    link: str | None = None,
    *,
    query: Positions | None = None,
    key: Keys | None = None,
    layers: range | slice | None = None,
    batch: int = 0,
    should_stop: StopCheck | None = None,
) -> HeadTable:
    """Rank all heads by the weight that some queries give to some keys.

    Args:
        trace: A trace of queries and keys, or of dense weights.
        link: The tokens as text, instead of `query` and `key`; see `parse_link`.
        query: The position of a query, or several (a range or slice); all queries if None.
        key: The position of a key, or several, also as a list of ranges that do not overlap; all keys if None.
        layers: The indices of some layers; all layers if None.
        batch: The index in the batch.
        should_stop: Called between blocks of weights; returns True to stop.

    Returns:
        All heads of the layers that have these positions, the strongest first. With queries and keys: `weight`, the
        weight on the keys together, as a mean over the queries. With queries alone: `top_weight`, the largest weight of
        a single key, and `top_key`, its position. With keys alone: `received`, the weight on the keys together, summed
        over all queries, `top_weight`, the largest weight of a query, and `top_query`.

    Raises:
        SettingError: Neither queries nor keys were given, no layer has these positions, or the text is not found.
        Cancelled: `should_stop` returned True.

    >>> weights = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.7, 0.1]])
    >>> trace = Trace.from_attentions([torch.stack([weights, torch.eye(3)])[None]])
    >>> table = find_heads(trace, query=2, key=1)
    >>> table.head_names, table["weight"]
    (['0.0', '0.1'], tensor([0.7000, 0.0000], dtype=torch.float64))
    """
    if link is not None:
        query, key = parse_link(trace, link, batch)
    some = slice(layers.start, layers.stop) if isinstance(layers, range) else layers or slice(None)
    names: list[str] = []
    heads: list[int] = []
    parts: list[dict[str, Tensor]] = []
    for name, layer in list(trace.layers.items())[some]:
        if isinstance(layer, StatisticsLayer):
            raise SettingError("find_heads: this trace has statistics only; record it with keep='matrix'")
        part = measure_link(layer.matrix().batch(batch), query, key, should_stop)
        if part is not None:
            names += [name] * layer.shape[1]
            heads += layer.heads
            parts.append(part)
    if not parts:
        raise SettingError(f"find_heads: no layer has query {query} and key {key}")
    columns = {column: torch.cat([part[column] for part in parts]) for column in parts[0]}
    return HeadTable(tuple(names), tuple(heads), columns).top(next(iter(columns)))


def measure_link(
    matrix: AttentionMatrix, query: Positions | None, key: Keys | None, should_stop: StopCheck | None = None
) -> dict[str, Tensor] | None:
    """Measure a link in all heads of one layer, as `find_heads` does.

    Args:
        matrix: The weights of a layer, (heads, queries, keys).
        query: As for `find_heads`.
        key: As for `find_heads`.
        should_stop: Called between blocks of weights; returns True to stop.

    Returns:
        The columns of `find_heads`, (heads,) each in float64 on the CPU; None if the layer lacks these positions.

    Raises:
        SettingError: Neither queries nor keys were given, or they are not consecutive.
        Cancelled: `should_stop` returned True.
    """
    if query is None and key is None:
        raise SettingError("find_heads: give a query, a key, or both")
    rows, columns = _resolve(query, matrix.shape[-2]), _resolve_keys(key, matrix.shape[-1])
    if rows is None or columns is None:
        return None
    if should_stop is not None:
        matrix = matrix.with_options(should_stop=should_stop)
    num_keys = sum(some.stop - some.start for some in columns)
    blocks = _blocks(rows, num_keys, matrix.shape[0], should_stop)
    if key is None:
        found = _strongest_keys(matrix, blocks)
    elif query is None:
        found = _strongest_queries(matrix, columns, blocks)
    else:
        found = _mean_weight(matrix, columns, blocks, len(rows))
    return {column: values.double().cpu() for column, values in found.items()}


def _resolve(positions: Positions | None, count: int) -> range | None:
    """The positions as a range of a layer with so many; None if it does not have them."""
    if positions is None:
        return range(count)
    wanted = range(positions, positions + 1) if isinstance(positions, int) else positions
    found = range(count)[wanted] if isinstance(wanted, slice) else wanted
    if found.step != 1:
        raise SettingError(f"find_heads: positions must be consecutive, got {positions}")
    if found.start < 0:
        found = range(found.start + count, found.stop + count)
    return found if found and found.start >= 0 and found.stop <= count else None


def _resolve_keys(keys: Keys | None, count: int) -> list[slice] | None:
    """The keys as slices of a layer with so many; None if it does not have all of them."""
    several = [keys] if keys is None or isinstance(keys, int | range | slice) else keys
    found = [_resolve(some, count) for some in several]
    known = [some for some in found if some is not None]
    if not several or len(known) < len(found):
        return None
    ordered = sorted(known, key=lambda some: some.start)
    if any(after.start < before.stop for before, after in pairwise(ordered)):
        raise SettingError(f"find_heads: expected ranges of keys that do not overlap, got {keys}")
    return [slice(some.start, some.stop) for some in ordered]


def _blocks(positions: range, others: int, heads: int, should_stop: StopCheck | None) -> Iterator[slice]:
    """Consecutive positions whose weights with `others` fit into MAX_CELLS."""
    step = max(1, MAX_CELLS // max(others * heads, 1))
    for start in range(positions.start, positions.stop, step):
        if should_stop is not None and should_stop():
            raise Cancelled("find_heads was cancelled")
        yield slice(start, min(start + step, positions.stop))


def _mean_weight(
    matrix: AttentionMatrix, columns: list[slice], blocks: Iterator[slice], num_rows: int
) -> dict[str, Tensor]:
    """The weight of each head on the columns together, as a mean over the rows, (heads,)."""
    sums = [matrix[:, part, some].double().sum((1, 2)) for part in blocks for some in columns]
    return {"weight": torch.stack(sums).sum(0) / num_rows}


def _strongest_keys(matrix: AttentionMatrix, blocks: Iterator[slice]) -> dict[str, Tensor]:
    """The largest weight of each head in some rows, and its key, (heads,) each."""
    found = [matrix[:, part, :].amax(1).max(-1) for part in blocks]
    weights, keys = (torch.stack([part[at] for part in found]) for at in (0, 1))
    best = weights.argmax(0, keepdim=True)
    return {"top_weight": weights.gather(0, best)[0], "top_key": keys.gather(0, best)[0]}


def _strongest_queries(matrix: AttentionMatrix, columns: list[slice], blocks: Iterator[slice]) -> dict[str, Tensor]:
    """The weight that some keys receive in each head, and the query that gives most, (heads,) each."""
    parts = [torch.stack([matrix[:, part, some].sum(-1) for some in columns]).sum(0) for part in blocks]
    weights = torch.cat(parts, 1)
    top = weights.max(-1)
    return {"received": weights.double().sum(-1), "top_weight": top.values, "top_query": top.indices}


def parse_link(trace: Trace, link: str, batch: int = 0) -> Link:
    """The positions that a text means: `QUERY -> KEY`, `QUERY`, or `-> KEY`.

    A side is a position (`8191`, `-1`), a span (`2285..2324`, both ends included), or words of the text. Words of the
    query are found at their last place, of which the last token counts. Words of the key are found at their last place
    before the query.

    Args:
        trace: The trace, for its tokens.
        link: The text.
        batch: The index in the batch.

    Returns:
        The positions of query and key; None for a side that the text leaves out.

    Raises:
        SettingError: The words are not in the text, or the trace has no tokens.

    >>> trace = Trace.from_attentions([torch.eye(4)[None, None]], tokens=["it ", "is ", "cobalt", "."])
    >>> parse_link(trace, "cobalt -> is"), parse_link(trace, "-1 -> 0..1")
    (Link(query=range(2, 3), key=range(1, 2)), Link(query=range(-1, 0), key=range(0, 2)))
    """
    sides = ARROW.split(link.strip())
    if len(sides) > 2 or not any(sides):
        raise SettingError(f"find_heads: expected 'QUERY -> KEY', 'QUERY' or '-> KEY', got {link!r}")
    query = _parse_query(trace, sides[0], batch) if sides[0] else None
    key = None
    if len(sides) == 2 and sides[1]:
        before = None if query is None or query.start < 0 else query.start
        key = _parse_positions(sides[1]) or _find_words(trace, sides[1], batch, before)
    return Link(query, key)


def _parse_query(trace: Trace, side: str, batch: int) -> range:
    positions = _parse_positions(side)
    if positions is not None:
        return positions
    last = _find_words(trace, side, batch, None)[-1]
    return range(last, last + 1)


def _parse_positions(side: str) -> range | None:
    found = POSITIONS.fullmatch(side)
    if found is None:
        return None
    first = int(found[1])
    return range(first, (first if found[2] is None else int(found[2])) + 1)


def _find_words(trace: Trace, words: str, batch: int, before: int | None) -> range:
    """The tokens of the last place of some words that ends before a token."""
    text, spans = _text_and_spans(trace, batch)
    end = len(text) if before is None else spans[before][0]
    at = text.rfind(words, 0, end)
    if at < 0:
        where = "" if before is None else f" before token {before}"
        raise SettingError(f"find_heads: {words!r} is not in the text{where}")
    inside = [token for token, (start, stop) in enumerate(spans) if start < at + len(words) and at < stop]
    return range(inside[0], inside[-1] + 1)


def _text_and_spans(trace: Trace, batch: int) -> tuple[str, list[tuple[int, int]]]:
    known = trace.spans(batch)
    if known is not None:
        return known
    tokens = trace.tokens(batch)
    if tokens is None:
        raise SettingError("find_heads: this trace has no tokens; give positions instead, such as '8191 -> 2285..2324'")
    stops = torch.tensor([len(token) for token in tokens]).cumsum(0).tolist()
    return "".join(tokens), list(zip([0, *stops[:-1]], stops, strict=True))
