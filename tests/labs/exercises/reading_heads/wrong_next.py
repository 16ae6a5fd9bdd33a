# kind: the wrong side
import torch
from torch import Tensor


def previous_score(weights: Tensor) -> Tensor:
    return weights.diagonal(1, 1, 2).mean(-1)


def copies(tokens: list[int]) -> Tensor:
    ids = torch.tensor(tokens)
    return (ids[:, None] == ids).tril(-1)


def mean_on(weights: Tensor, pairs: Tensor, queries: Tensor) -> Tensor:
    if not queries.any():
        return weights.new_zeros(len(weights))
    return (weights * pairs).sum(-1)[:, queries].mean(-1)


def duplicate_score(weights: Tensor, tokens: list[int]) -> Tensor:
    same = copies(tokens)
    return mean_on(weights, same, same.any(-1))


def induction_score(weights: Tensor, tokens: list[int]) -> Tensor:
    same = copies(tokens)
    return mean_on(weights, same.roll(1, dims=1), same.any(-1))


def name_heads(weights: Tensor, tokens: list[int]) -> list[str]:
    scores = torch.stack([previous_score(weights), duplicate_score(weights, tokens), induction_score(weights, tokens)])
    names = ("previous", "duplicate", "induction")
    return [names[best] if score >= 0.4 else "other" for score, best in zip(*scores.max(0), strict=True)]
