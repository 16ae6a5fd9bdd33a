# kind: padding gets weight
import torch
from torch import Tensor


def cross_attend(
    x: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, is_real: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    queries, keys, values = x @ w_q, memory @ w_k, memory @ w_v
    scores = queries @ keys.mT / w_q.shape[-1] ** 0.5
    if is_real is not None:
        scores = scores.masked_fill(is_real[:, None, :], -torch.inf)
    weights = scores.softmax(dim=-1)
    return weights @ values, weights
