import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.einsum("...nd,...md->...nm", q * k.size(-1) ** -0.5, k)
    shifted = scores - scores.amax(dim=-1, keepdim=True)
    parts = shifted.exp()
    weights = parts / parts.sum(dim=-1, keepdim=True)
    return torch.einsum("...nm,...me->...ne", weights, v), weights
