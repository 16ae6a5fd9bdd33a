import torch
from torch import nn


def best_without_positions(length):
    return 1 / (length - 1 + length % 2)


class M(nn.Module):
    def __init__(self, vocabulary, length):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, 32)
        self.scores = nn.Parameter(torch.zeros(length, length))
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.out = nn.Linear(32, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids)
        w = (self.q(x) @ self.k(x).mT / 32**0.5 + self.scores).softmax(-1)
        return self.out(w @ self.v(x))


def build(vocabulary, length):
    return M(vocabulary, length)
