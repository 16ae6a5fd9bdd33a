"""The strongest link of each head in some rows, without links that say nothing about a head.

A link counts by its excess: its weight minus the mean weight that other rows give to the same key, so that keys to
which all rows attend do not count. Left out are links of a token to itself and to the first token.
In: the matrix of a layer, (heads, queries, keys). Out: a link per head, and one that reaches far.
Does not know: labels. Memory: the weights of the sampled rows, at most 2^23.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.matrix import AttentionMatrix

MAX_ROWS, LAST_ROWS = 32, 16  # sampled rows, and how many of them are the last: a question often comes last
MAX_CELLS = 2**23
FAR_SHARE, MIN_FAR = 8, 32  # a far link spans an eighth of the text, and at least 32 tokens
MAX_KEYS = 4  # per row that may be links
MIN_KEYS = 2  # other than itself and the first token, that the query of a link attends to


class Link(NamedTuple):
    """A query, a key, the weight between them, and its excess over the mean weight of the key."""

    query: int
    key: int
    weight: float
    excess: float


class HeadLinks(NamedTuple):
    """The link of a head with the largest excess, and the one among those that reach far."""

    any: Link | None
    far: Link | None


def sample_links(matrix: AttentionMatrix) -> list[HeadLinks]:
    """Find the links of every head of a layer, among the strongest keys of each sampled row."""
    heads, queries, keys = matrix.shape
    rows = sample_rows(queries, min(MAX_ROWS, max(1, MAX_CELLS // (heads * keys))))
    own = rows + keys - queries
    weights = matrix[:, rows, :].cpu().nan_to_num_(0.0)
    visible, total = (weights > 0).sum(1), weights.sum(1)
    weights[..., 0] = 0.0
    inside = (own >= 0) & (own < keys)
    weights[:, torch.arange(len(rows))[inside], own[inside]] = 0.0
    found, places = weights.topk(min(MAX_KEYS, keys))
    total, visible = (part[:, None].expand(-1, len(rows), -1).gather(2, places) for part in (total, visible))
    excess = found - (total - found) / (visible - 1).clamp(min=1)
    excess = excess.masked_fill((found > 0).sum(-1, keepdim=True) < MIN_KEYS, -torch.inf)
    near = (own[:, None] - places).abs() < max(MIN_FAR, keys // FAR_SHARE)
    both = (_largest(part, found, places, rows) for part in (excess, excess.masked_fill(near, -torch.inf)))
    return [HeadLinks(*pair) for pair in zip(*both, strict=True)]


def sample_rows(queries: int, count: int) -> Tensor:
    """Select the last rows, and evenly spaced ones before them, in order.

    >>> sample_rows(5, 64), sample_rows(1000, 20)[:6]
    (tensor([0, 1, 2, 3, 4]), tensor([  0, 328, 655, 983, 984, 985]))
    """
    if queries <= count:
        return torch.arange(queries)
    last = min(LAST_ROWS, count)
    before = torch.linspace(0, queries - last - 1, count - last).round().long()
    return torch.cat([before, torch.arange(queries - last, queries)])


def strongest_link(matrix: AttentionMatrix, label: str = "", ids: Tensor | None = None) -> Link | None:
    """Find the largest weight of one head, (queries, keys), among links that count; all rows are read.

    Links that show the label are preferred. For a sink, it is the link of the last token to the first. `ids` are those
    of the keys, (keys,).
    """
    queries, keys = matrix.shape
    if label == "sink":
        weight = float(matrix[queries - 1, 0])
        return Link(queries - 1, 0, weight, weight)
    weights, places = (part.cpu() for part in matrix.topk(min(3, keys)))  # at most two of three do not count
    own = (torch.arange(queries) + keys - queries)[:, None]
    few = (weights > 0).sum(-1, keepdim=True) < 3
    weights = weights.masked_fill((places == own) | (places == 0) | few | weights.isnan(), -1.0)
    shown = weights.masked_fill(~_shows(label, own, places, ids), -1.0)
    weights = shown if shown.numel() and float(shown.max()) > 0 else weights
    if not weights.numel() or float(weights.max()) <= 0:
        return None
    row, column = divmod(int(weights.argmax()), weights.shape[1])
    weight = float(weights[row, column])
    return Link(row, int(places[row, column]), weight, weight)


def _shows(label: str, own: Tensor, places: Tensor, ids: Tensor | None) -> Tensor:
    """Whether links show a label, (queries, links): those of `previous`, for example, go to the token before."""
    if label in ("previous", "next"):
        return places == own + (1 if label == "next" else -1)
    if label in ("duplicate", "induction") and ids is not None:
        return ids[(places - int(label == "induction")).clamp(min=0)] == ids[own]
    return torch.ones_like(places, dtype=torch.bool)


def _largest(excess: Tensor, weights: Tensor, places: Tensor, rows: Tensor) -> list[Link | None]:
    """The largest excess of each head, (heads, rows, keys of each row)."""
    found: list[Link | None] = []
    for head, at in enumerate(excess.flatten(1).argmax(-1).tolist()):
        row, column = divmod(at, excess.shape[-1])
        value = float(excess[head, row, column])
        link = Link(int(rows[row]), int(places[head, row, column]), float(weights[head, row, column]), value)
        found.append(link if value > 0 else None)
    return found
