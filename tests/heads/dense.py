"""Every score as the obvious lines over dense weights, to hold `score_heads` against."""

from __future__ import annotations

import torch
from torch import Tensor


def dense_scores(weights: Tensor, ids: Tensor | None = None, documents: Tensor | None = None) -> dict[str, Tensor]:
    """Scores (heads,) of weights (batch, heads, queries, keys) without padding."""
    weights = weights.double()
    seen = weights > 0
    choice = seen.sum(-1) > 1
    rows, columns = torch.arange(weights.shape[2])[:, None], torch.arange(weights.shape[3])[None, :]
    apart = (rows - columns).abs()
    received = weights.sum(2) / weights.sum((2, 3))[..., None]
    entropy = -torch.xlogy(weights, weights).sum(-1)
    found = {
        "entropy": mean(entropy, choice),
        "evenness": mean(entropy / seen.sum(-1).clamp(min=2).log(), choice),
        "effective_keys": mean(1 / weights.square().sum(-1), choice),
        "reach": mean((weights * apart).sum(-1), choice),
        "self": mean((weights * (apart == 0)).sum(-1), choice),
        "previous": mean((weights * (columns == rows - 1)).sum(-1), choice & (rows[:, 0] > 0)),
        "local": mean((weights * (apart <= 8)).sum(-1), choice & (seen.sum(-1) > 17)),
        "sink": mean(weights[..., 0], choice),
        "concentration": received.square().sum(-1).mean(0),
    }
    if ids is not None:
        same = (ids[:, :, None] == ids[:, None, :])[:, None]
        behind = torch.zeros_like(same)
        behind[..., 1:] = same[..., :-1]
        found["next"] = of_cells(weights, seen, choice, columns == rows + 1)
        found["duplicate"] = of_cells(weights, seen, choice, same & (apart > 0))
        found["induction"] = of_cells(weights, seen, choice, behind & (apart > 0) & (columns != rows + 1))
    if documents is not None:
        found["leakage"] = mean(
            (weights * (documents[:, None, :, None] != documents[:, None, None, :])).sum(-1), choice
        )
    return found


def of_cells(weights: Tensor, seen: Tensor, choice: Tensor, cells: Tensor) -> Tensor:
    """The mean weight on some cells, over the rows that see any of them."""
    return mean((weights * cells).sum(-1), choice & (seen & cells).any(-1))


def mean(values: Tensor, rows: Tensor) -> Tensor:
    """(heads,): the mean over rows of all batch rows."""
    rows = rows.expand_as(values)
    return torch.where(rows, values, 0.0).sum((0, 2)) / rows.sum((0, 2))
