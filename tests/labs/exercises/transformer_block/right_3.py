import torch
from torch import nn


def block(x, p, heads):
    d = x.shape[-1]
    layer = nn.TransformerEncoderLayer(
        d, heads, p["w_1"].shape[1], dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    copied = {
        "self_attn.in_proj_weight": torch.cat([p["w_q"].T, p["w_k"].T, p["w_v"].T]),
        "self_attn.in_proj_bias": torch.zeros(3 * d),
        "self_attn.out_proj.weight": p["w_o"].T,
        "self_attn.out_proj.bias": torch.zeros(d),
        "linear1.weight": p["w_1"].T,
        "linear1.bias": p["b_1"],
        "linear2.weight": p["w_2"].T,
        "linear2.bias": p["b_2"],
        "norm1.weight": p["gain_1"],
        "norm1.bias": p["shift_1"],
        "norm2.weight": p["gain_2"],
        "norm2.bias": p["shift_2"],
    }
    layer.load_state_dict(copied)
    with torch.no_grad():
        return layer(x, src_mask=torch.ones(x.shape[1], x.shape[1]).triu(1).bool())
