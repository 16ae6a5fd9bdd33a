"""The scores of some cells of the matrix, as every blockwise walk needs them.

In: rows of the query and columns of the key, and where they stand. Out: scores after scale and steps, and which of them
the mask allows. Memory: the cells asked for.
"""

from __future__ import annotations

from torch import Tensor

from attnscope.attention.rule import Rule
from attnscope.attention.scores import Cells


def block_scores(rule: Rule, query: Tensor, key: Tensor, cells: Cells) -> list[Tensor]:
    """Scores of query rows (batch, heads, r, dim) against key columns (batch, key heads, c, dim), after each step."""
    products = ungathered(gathered(query * rule.scale, rule) @ key.mT, rule)
    return _after_each_step(rule, products, cells)


def pair_scores(rule: Rule, query: Tensor, key: Tensor, cells: Cells) -> Tensor:
    """Scores of query rows against key rows one by one, both (batch, heads, pairs, dim)."""
    return _after_each_step(rule, (query * rule.scale * key).sum(-1), cells)[-1]


def allowed(rule: Rule, cells: Cells) -> Tensor:
    """Which cells the mask allows, to be broadcast to their scores."""
    found = rule.mask.allows(cells.query, cells.key, rule.sizes)
    depends_on_batch = found.dim() > cells.query.dim() and found.shape[0] > 1
    return found[cells.batch] if depends_on_batch else found


def gathered(tensor: Tensor, rule: Rule) -> Tensor:
    """(batch, heads, rows, x) as (batch, key heads, rows of all heads of the group, x), to meet its key head."""
    batch, heads, rows, width = tensor.shape
    group = heads // rule.key_heads
    return tensor if group == 1 else tensor.reshape(batch, rule.key_heads, group * rows, width)


def ungathered(tensor: Tensor, rule: Rule) -> Tensor:
    """The inverse of `gathered`."""
    batch, key_heads, rows, width = tensor.shape
    heads = rule.sizes.heads
    return tensor if heads == key_heads else tensor.reshape(batch, heads, rows * key_heads // heads, width)


def _after_each_step(rule: Rule, scores: Tensor, cells: Cells) -> list[Tensor]:
    stages = [scores]
    for step in rule.steps:
        stages.append(step.apply(stages[-1], cells))
    return stages
