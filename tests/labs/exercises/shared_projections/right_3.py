import torch
from torch import Tensor


def as_one_head(
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shrink = heads**-0.25
    wide_q, wide_k = torch.cat([w_q * shrink] * heads, dim=1), torch.cat([w_k * shrink] * heads, dim=1)
    return wide_q, wide_k, torch.cat([w_v] * heads, dim=1), w_o


def largest_rank(d: int, w: int, heads: int, shared: bool) -> int:
    independent = w
    if not shared:
        independent = w * heads
    return independent if independent < d else d


def gradient_of_w_o(head: Tensor, upstream: Tensor, heads: int) -> Tensor:
    width = head.shape[1]
    gradient = torch.zeros(heads * width, upstream.shape[1], dtype=head.dtype)
    for token, above in zip(head, upstream, strict=True):
        for copy in range(heads):
            gradient[copy * width : (copy + 1) * width] += torch.outer(token, above)
    return gradient
