import math

import torch
from torch import nn


def best_without_positions(length):
    from fractions import Fraction

    return Fraction(1, length if length % 2 else length - 1)


class M(nn.Module):
    code: torch.Tensor

    def __init__(self, vocabulary, length, width=64):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        place = torch.arange(length)[:, None]
        rate = torch.exp(-math.log(100.0) * torch.arange(0, width, 2) / width)
        self.register_buffer("code", torch.cat([torch.sin(place * rate), torch.cos(place * rate)], 1))
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids)
        y = x + self.code[: ids.shape[1]]
        w = (self.q(y) @ self.k(y).mT / y.shape[-1] ** 0.5).softmax(-1)
        return self.out(w @ self.v(x))


def build(vocabulary, length):
    return M(vocabulary, length)
