# kind: nothing to learn
import torch
from torch import nn

from tests.labs.exercises.sequence_reversal.right_1 import best_without_positions


class Model(nn.Module):
    def __init__(self, vocabulary, length, width=32):
        super().__init__()
        embeddings = [nn.Embedding(vocabulary, width), nn.Embedding(length, width)]
        self.layers = [*embeddings, nn.MultiheadAttention(width, 2, batch_first=True), nn.Linear(width, vocabulary)]

    def forward(self, ids):
        x = self.layers[0](ids) + self.layers[1](torch.arange(ids.shape[1]))
        x, _ = self.layers[2](x, x, x)
        return self.layers[3](x)


def build(vocabulary, length):
    return Model(vocabulary, length)
