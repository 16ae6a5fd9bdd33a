# kind: no first norm
import torch
from torch import Tensor
from torch.nn import functional as F


def attention(y: Tensor, p: dict[str, Tensor], heads: int) -> Tensor:
    batch, n, d = y.shape
    q, k, v = ((y @ p[name]).view(batch, n, heads, -1).transpose(1, 2) for name in ("w_q", "w_k", "w_v"))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, n, d) @ p["w_o"]


def block(x: Tensor, p: dict[str, Tensor], heads: int) -> Tensor:
    x = x + attention(x, p, heads)
    hidden = F.layer_norm(x, x.shape[-1:], p["gain_2"], p["shift_2"]) @ p["w_1"] + p["b_1"]
    return x + F.gelu(hidden) @ p["w_2"] + p["b_2"]
