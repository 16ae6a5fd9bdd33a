import torch
from torch.nn import functional as F


def cross_attend(x, memory, w_q, w_k, w_v, is_real=None):
    q, k, v = x @ w_q, memory @ w_k, memory @ w_v
    mask = None if is_real is None else is_real[:, None].expand(len(x), x.shape[1], memory.shape[1])
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    identity = torch.eye(memory.shape[1]).expand(len(x), -1, -1)
    return output, F.scaled_dot_product_attention(q, k, identity, attn_mask=mask)
