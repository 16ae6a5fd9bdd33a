import torch
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    place = torch.arange(length)
    return torch.where(place[None, :] <= place[:, None], 0.0, -torch.inf)


def causal_weights(scores: Tensor, is_real: Tensor | None = None) -> Tensor:
    allowed = (causal_mask(scores.shape[-1]) == 0).expand_as(scores)
    if is_real is not None:
        allowed = torch.logical_and(allowed, is_real[..., None, :])
    lowest = torch.finfo(scores.dtype).min
    peak = torch.where(allowed, scores, lowest).amax(-1, keepdim=True)
    parts = torch.where(allowed, torch.exp(torch.where(allowed, scores - peak, 0.0)), 0.0)
    total = parts.sum(-1, keepdim=True)
    return parts / torch.where(total == 0, 1.0, total)
