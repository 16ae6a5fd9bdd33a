# kind: it does not learn
import torch
from torch import nn


def best_without_positions(length):
    return 1 / (length - 1 + length % 2)


class M(nn.Module):
    def __init__(self, vocabulary, length):
        super().__init__()
        self.e = nn.Embedding(vocabulary, 32)
        self.p = nn.Parameter(torch.zeros(1, length, 32))
        self.a = nn.MultiheadAttention(32, 4, batch_first=True)
        self.out = nn.Linear(32, vocabulary)

    def forward(self, ids):
        x = self.e(ids) + self.p.detach()
        return self.out(self.a(x, x, x)[0])


def build(vocabulary, length):
    return M(vocabulary, length)
