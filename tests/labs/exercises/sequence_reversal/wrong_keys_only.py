# kind: a place does not know where it is
import torch
from torch import nn

from tests.labs.exercises.sequence_reversal.right_1 import best_without_positions


class Model(nn.Module):
    def __init__(self, vocabulary, length, width=32):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids)
        placed = x + self.positions(torch.arange(ids.shape[1]))
        x, _ = self.attention(x, placed, x)
        return self.output(x)


def build(vocabulary, length):
    return Model(vocabulary, length)
