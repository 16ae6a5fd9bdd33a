"""Positions from zero, einsum, and the bound by going through all orders."""

from itertools import permutations

import torch
from torch import nn


def best_without_positions(length):
    orders = list(permutations(range(length)))
    best = 0
    for token in range(length):
        hits = [0] * length
        for order in orders:
            hits[order[length - 1 - order.index(token)]] += 1
        best += max(hits)
    return best / len(orders) / length


class Attention(nn.Module):
    def __init__(self, vocabulary, length):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 40)
        self.places = nn.Parameter(torch.zeros(length, 40))
        self.heads = nn.ModuleDict({name: nn.Linear(40, 40, bias=False) for name in ("query", "key", "value")})
        self.scores = nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, vocabulary))

    def forward(self, ids):
        rows = self.embed(ids)
        placed = rows + self.places
        query, key = self.heads["query"](placed), self.heads["key"](placed)
        weights = torch.einsum("bid,bjd->bij", query, key).div(40**0.5).softmax(-1)
        return self.scores(torch.einsum("bij,bjd->bid", weights, self.heads["value"](rows)))


build = Attention
