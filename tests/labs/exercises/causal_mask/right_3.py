import torch
import torch.nn.functional as F
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    mask = torch.zeros(length, length)
    for query in range(length):
        mask[query, query + 1 :] = -torch.inf
    return mask


def one_row(row: Tensor, seen: list[int]) -> Tensor:
    if not seen:
        return row * 0
    weights = F.softmax(row[seen], dim=0)
    return torch.zeros_like(row).index_put((torch.tensor(seen),), weights)


def causal_weights(scores: Tensor, is_real: Tensor | None = None) -> Tensor:
    if scores.dim() > 2:
        tags = [None] * len(scores) if is_real is None else list(is_real)
        return torch.stack([causal_weights(one, tag) for one, tag in zip(scores, tags, strict=True)])
    rows = []
    for query, row in enumerate(scores):
        seen = [key for key in range(query + 1) if is_real is None or bool(is_real[key])]
        rows.append(one_row(row, seen))
    return torch.stack(rows)
