"""Attention weights computed by the model's own code, as a reference for `record(verify=True)`.

In: the arguments with which a model called its attention. Out: some blocks of weights from the model's own eager code,
or from its own kernel with one-hot values. Does not know: what was recorded.
Memory: O(n) times the rows or columns of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.attention import attend
from attnscope.attention.spec import to_4d
from attnscope.extras import import_extra
from attnscope.recording.call import Call
from attnscope.recording.hooks.torch_functions import to_batch_and_head
from attnscope.recording.hooks.transformers_masks import LazyMask, without_sizes

ROWS = 8
MAX_CELLS = 2**26  # nn.MultiheadAttention returns all of its weights at once


class ReferenceBlock(NamedTuple):
    """Attention weights (batch, heads, rows, columns) and their positions."""

    rows: range
    columns: range
    weights: Tensor


ReferenceWeights = Callable[[], list[ReferenceBlock]]


def from_eager(
    eager: Callable[..., tuple[Tensor, Tensor]],
    module: nn.Module,
    tensors: tuple[Tensor, Tensor, Tensor],
    attention_mask: Any,
    scaling: float | None,
    kwargs: Mapping[str, Any],
) -> list[ReferenceBlock]:
    """First, middle and last rows, by the eager attention of a transformers model with its own mask."""
    query, key, value = tensors
    queries = query.shape[2]
    blocks = []
    for start in sorted({0, max(queries // 2 - ROWS, 0), max(queries - ROWS, 0)}):
        rows = range(start, min(start + ROWS, queries))
        inside = slice(rows.start, rows.stop)
        options = {name: _rows_of(given, inside, queries) for name, given in kwargs.items()}
        mask = _eager_mask(attention_mask, rows, queries, query.dtype)
        found = eager(module, query[:, :, inside], key, value, mask, scaling=scaling, dropout=0.0, **options)[1]
        blocks.append(ReferenceBlock(rows, range(found.shape[-1]), found))
    return blocks


def _eager_mask(mask: Any, rows: range, queries: int, dtype: torch.dtype) -> Tensor | None:
    if isinstance(mask, LazyMask):
        arguments = {**mask.arguments, "q_length": len(rows), "q_offset": mask.row + rows.start, "dtype": dtype}
        return import_extra("transformers.masking_utils").eager_mask(**without_sizes(arguments))
    if mask is None or mask.shape[-2] != queries:
        return mask
    some = mask[..., rows.start : rows.stop, :]
    return some if some.dtype != torch.bool else torch.where(some, 0.0, torch.finfo(dtype).min).to(dtype)


def _rows_of(given: Any, rows: slice, queries: int) -> Any:
    """Some rows of an argument, if it is a bias for each query and key."""
    if isinstance(given, Tensor) and given.dim() == 4 and given.shape[2] == queries:
        return given[:, :, rows]
    return given


def from_kernel(function: Callable, arguments: Mapping[str, Any]) -> list[ReferenceBlock]:
    """The weights of the first keys, by the function that the model called: its output for one-hot values."""
    if function is F.multi_head_attention_forward:
        return _from_multi_head(arguments)
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    ones = torch.eye(key.shape[-2], key.shape[-1], dtype=value.dtype, device=value.device)
    plain = {"dropout": 0.0, "return_lse": False} if function is attend else {"dropout_p": 0.0}
    output = function(**{**arguments, "value": ones.expand(*key.shape[:-2], -1, -1).contiguous(), **plain})
    columns = range(min(key.shape[-2:]))
    weights = to_4d(output) if function is attend else to_batch_and_head(output)
    return [ReferenceBlock(range(query.shape[-2]), columns, weights[..., : len(columns)])]


def _from_multi_head(arguments: Mapping[str, Any]) -> list[ReferenceBlock]:
    query, key = arguments["query"], arguments["key"]
    if query.shape[0] * key.shape[0] * query.shape[1] > MAX_CELLS:
        return []
    options = {"need_weights": True, "average_attn_weights": False, "training": False}
    weights = F.multi_head_attention_forward(**{**arguments, **options})[1]
    assert weights is not None
    weights = to_4d(weights)
    return [ReferenceBlock(range(weights.shape[2]), range(weights.shape[3]), weights)]


def max_abs_error(call: Call, blocks: Sequence[ReferenceBlock]) -> float:
    """The largest absolute difference between a call's weights and the reference; fully masked rows are left out."""
    matrix = call.matrix()
    keys, worst = call.key.shape[2], 0.0
    for block in blocks:
        columns = range(min(len(block.columns), keys))
        ours = matrix[..., block.rows.start : block.rows.stop, columns.start : columns.stop]
        empty = torch.isneginf(matrix.lse[..., block.rows.start : block.rows.stop, None])
        theirs = block.weights.detach()[..., columns.start : columns.stop].to(ours)
        worst = max(worst, float((ours - theirs).masked_fill(empty, 0.0).abs().max()))
    return worst
