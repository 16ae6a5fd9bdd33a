"""How one attention weight is computed: q.k, scale, score modifiers, mask and softmax.

In: the weights of one head, and a cell. Out: the terms of its weight, exp(score - lse). Memory: one query, one key, and
the row for its log-sum-exp if that is not known.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention.cells import allowed_cells, block_scores
from attnscope.attention.scores import Cells
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.matrix.positions import Positions


class WeightTerms(NamedTuple):
    """The terms of one attention weight."""

    query: Tensor  #: q as it enters the dot product, (dim,), float64, on the CPU
    key: Tensor  #: k, likewise
    scale: float  #: factor of q.k
    score: float  #: scale * q.k, changed by the score modifiers; what the softmax takes unless it is masked
    is_modified: bool  #: whether there are score modifiers
    is_masked: bool  #: whether the mask forbids the cell, so that its weight is 0
    lse: float  #: log-sum-exp of the row, including sinks; -inf for a row without keys
    sink: float | None  #: logit of the attention sink of the head, which has no value; None without one
    weight: float  #: exp(score - lse), or 0

    @property
    def products(self) -> Tensor:
        """q_i * k_i of each dimension, (dim,); their sum is q.k."""
        return self.query * self.key


def weight_terms(source: LazyWeights, query: int, key: int) -> WeightTerms:
    """The terms of a weight of the first head of the first batch row."""
    rows, columns = (Positions(range(at, at + 1), source.device) for at in (query, key))
    cells = Cells(rows.tensor[:, None], columns.tensor[None, :], source.sizes)
    one, other = (part.to(source.dtype) for part in (source.query[:, :, rows.index], source.key[:, :, columns.index]))
    score = float(block_scores(source.spec, one, other, cells)[-1].flatten()[0])
    is_masked = not bool(allowed_cells(source.spec, cells).flatten()[0])
    lse = source.lse_of(rows).flatten()[0]
    weight = 0.0 if is_masked else float(torch.exp(torch.tensor(score, dtype=source.dtype) - lse.cpu()))
    sinks = source.spec.sinks
    return WeightTerms(
        query=one[0, 0, 0].double().cpu(),
        key=other[0, 0, 0].double().cpu(),
        scale=source.spec.scale,
        score=score,
        is_modified=bool(source.spec.steps),
        is_masked=is_masked,
        lse=float(lse),
        sink=None if sinks is None else float(sinks.logits[0]),
        weight=weight,
    )
