# kind: the middle is forgotten
import torch
from torch import nn


def best_without_positions(length):
    return 1 / max(length - 1, 1)


class Model(nn.Module):
    def __init__(self, vocabulary, length, width=32):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        x, _ = self.attention(x, x, x)
        return self.output(x)


def build(vocabulary, length):
    return Model(vocabulary, length)
