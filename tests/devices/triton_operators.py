"""The operators `torch.ops.attnscope.*` by dense fp64 code on the CPU, strict about what a kernel would read and write.

A kernel reads only the queries that its layout names, masks none of those that attend to a whole block, and leaves
what it does not write undefined, here NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnscope.attention.triton import reference
from attnscope.attention.triton.inputs import KernelInputs, RowStatistics
from attnscope.attention.triton.operators import NAMESPACE, from_arguments

LOG2_E = math.log2(math.e)


def row_pass(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The planes and candidates of `RowStatistics`."""
    inputs, (find_key,) = from_arguments(*arguments)
    scores = masked_scores(inputs)
    found = reference.row_statistics(scores, reference.dense_lse(scores, inputs.terms.sinks))
    planes = torch.stack([found[name] for name in RowStatistics._fields[:9]]).float()
    return planes, scores.argmax(-1).int() if find_key else torch.empty(0, dtype=torch.int32)


def neighbour_pass(*arguments: Any) -> Tensor:
    """The planes of `NeighbourWeights`."""
    inputs, (lse_base2, reach) = from_arguments(*arguments)
    found = reference.neighbour_weights(weights_given(masked_scores(inputs), lse_base2), reach)
    return torch.stack(list(found.values())).float()


def largest_key_pass(*arguments: Any) -> Tensor:
    """The candidates, which are the keys; -1 without keys."""
    inputs, (candidates,) = from_arguments(*arguments)
    return candidates.where(allowed_cells(inputs).any(-1).expand(candidates.shape), -1)


def spread_pass(*arguments: Any) -> Tensor:
    """The standard deviation of the distance, around the given mean."""
    inputs, (lse_base2, mean) = from_arguments(*arguments)
    weights = weights_given(masked_scores(inputs), lse_base2)
    queries, keys = weights.shape[-2:]
    away = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys) - mean.double()[..., None]
    mass = weights.sum(-1)
    return ((weights * away.square()).sum(-1) / mass.masked_fill(mass == 0, 1.0)).sqrt().float()


def match_pass(*arguments: Any) -> Tensor:
    """The weight on keys with the id of the query."""
    inputs, (lse_base2, query_ids, key_ids) = from_arguments(*arguments)
    return reference.matched_weights(weights_given(masked_scores(inputs), lse_base2), query_ids, key_ids).float()


def match_count(*arguments: Any) -> Tensor:
    """The number of these keys."""
    inputs, (query_ids, key_ids) = from_arguments(*arguments)
    batch = len(inputs.query)
    allowed = allowed_cells(inputs).double().expand(batch, -1, -1, -1)
    return reference.matched_weights(allowed, query_ids, key_ids)[:, 0].long()


def column_pass(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Sums and maxima of each group of columns."""
    inputs, rest = from_arguments(*arguments)
    lse_base2, left, right, first, last, full_first, full_last, edges, width, group, first_column, maximum = rest
    assert inputs.config is not None
    unmasked = weights_given(all_scores(inputs), lse_base2)
    masked = weights_given(masked_scores(inputs), lse_base2)
    num_bins, block_keys = len(edges) - 1, inputs.config.block_keys
    sums = torch.full((*unmasked.shape[:2], num_bins, width), math.nan)
    largest = torch.full_like(sums, math.nan)
    rows = torch.arange(unmasked.shape[2])
    for block, (start, stop) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
        is_read = (rows >= first[:, block, None]) & (rows < last[:, block, None])
        is_full = (rows >= full_first[:, block, None]) & (rows < full_last[:, block, None])
        weights = torch.where(is_full[:, None, :, None], unmasked[..., start:stop], masked[..., start:stop])
        weights = weights.where(is_read[:, None, :, None], 0.0)
        size = block_keys if group == block_keys else group
        at = block if group == block_keys else (start - first_column) // group
        for begin in range(0, stop - start, size):
            part = weights[..., begin : begin + size]
            for bin_ in range(num_bins):
                cells = part[:, :, int(edges[bin_]) : int(edges[bin_ + 1])]
                sums[:, :, bin_, at] = cells.sum((-1, -2))
                largest[:, :, bin_, at] = cells.amax((-1, -2)) if cells.numel() else 0.0
            at += 1
    return sums, largest if maximum else torch.empty(0)


def allowed_cells(inputs: KernelInputs) -> Tensor:
    """Which query attends to which key, (batch or 1, 1, queries, keys)."""
    start, stop, _ = inputs.intervals
    keys = torch.arange(inputs.key.shape[2])
    return ((keys >= start[..., None]) & (keys < stop[..., None]))[:, None]


def masked_scores(inputs: KernelInputs) -> Tensor:
    """The scores, -inf where masked."""
    return all_scores(inputs).masked_fill(~allowed_cells(inputs), -math.inf)


def all_scores(inputs: KernelInputs) -> Tensor:
    """The scores of all cells."""
    everything = torch.ones(1, 1, inputs.query.shape[2], inputs.key.shape[2], dtype=torch.bool)
    return reference.dense_scores(inputs.query, inputs.key, everything, inputs.terms)


def weights_given(scores: Tensor, lse_base2: Tensor) -> Tensor:
    """The weights, 0 for rows without keys."""
    return reference.dense_weights(scores, lse_base2.double() / LOG2_E)


EMULATED = {
    f"{NAMESPACE}::{function.__name__}": function
    for function in (row_pass, neighbour_pass, largest_key_pass, match_pass, match_count, spread_pass, column_pass)
}
