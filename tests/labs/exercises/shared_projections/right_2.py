import torch
from torch import Tensor


def as_one_head(
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    copies = torch.eye(w_q.shape[1], dtype=w_q.dtype).repeat(1, heads)
    return w_q, w_k, w_v, copies @ w_o


def largest_rank(d: int, w: int, heads: int, shared: bool) -> int:
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(4 * d, w * (1 if shared else heads), generator=generator, dtype=torch.float64)
    mixed = torch.randn(columns.shape[1], d, generator=generator, dtype=torch.float64)
    return int(torch.linalg.matrix_rank(columns @ mixed))


def gradient_of_w_o(head: Tensor, upstream: Tensor, heads: int) -> Tensor:
    return torch.einsum("nw,nd->wd", head, upstream).repeat(heads, 1)
