"""Scores of some cells of the attention matrix, shared by everything that works block by block.

In: query rows and key columns, and their positions. Out: scores after scale and score modifiers, and which of them the
mask allows. Memory: the requested cells.
"""

from __future__ import annotations

from torch import Tensor

from attnscope.attention.scores import Cells
from attnscope.attention.spec import AttentionSpec


def block_scores(spec: AttentionSpec, query: Tensor, key: Tensor, cells: Cells) -> list[Tensor]:
    """Return the scores of a block, before and after each score step.

    Args:
        spec: The attention that the block belongs to.
        query: Query rows, (batch, heads, rows, dim).
        key: Key columns, (batch, key heads, columns, dim).
        cells: The positions of these rows and columns.

    Returns:
        Tensors (batch, heads, rows, columns): the scaled products, then one for each of `spec.steps`.
    """
    products = unfold_query_groups(fold_query_groups(query * spec.scale, spec) @ key.mT, spec)
    return _apply_steps(spec, products, cells)


def pair_scores(spec: AttentionSpec, query: Tensor, key: Tensor, cells: Cells) -> Tensor:
    """Return the scores (batch, heads, pairs) of query i with key i, both (batch, heads, pairs, dim)."""
    return _apply_steps(spec, (query * spec.scale * key).sum(-1), cells)[-1]


def allowed_cells(spec: AttentionSpec, cells: Cells) -> Tensor:
    """Return booleans that broadcast to the scores of these cells: True where the mask allows attention."""
    allowed = spec.mask.allows(cells.query, cells.key, spec.sizes)
    depends_on_batch = allowed.dim() > cells.query.dim() and allowed.shape[0] > 1
    return allowed[cells.batch] if depends_on_batch else allowed


def fold_query_groups(tensor: Tensor, spec: AttentionSpec) -> Tensor:
    """Reshape (batch, heads, rows, x) to (batch, key heads, heads per key head * rows, x) for products with keys."""
    batch, heads, rows, width = tensor.shape
    group = heads // spec.num_kv_heads
    return tensor if group == 1 else tensor.reshape(batch, spec.num_kv_heads, group * rows, width)


def unfold_query_groups(tensor: Tensor, spec: AttentionSpec) -> Tensor:
    """Reshape (batch, key heads, heads per key head * rows, x) back to (batch, heads, rows, x)."""
    batch, kv_heads, rows, width = tensor.shape
    heads = spec.sizes.heads
    return tensor if heads == kv_heads else tensor.reshape(batch, heads, rows * kv_heads // heads, width)


def _apply_steps(spec: AttentionSpec, scores: Tensor, cells: Cells) -> list[Tensor]:
    """Return the scores before and after each step."""
    stages = [scores]
    for step in spec.steps:
        stages.append(step.apply(stages[-1], cells))
    return stages
