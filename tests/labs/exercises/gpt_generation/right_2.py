import math

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        mask = torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1)
        y = self.norm_1(x)
        x = x + self.attention(y, y, y, attn_mask=mask)[0]
        return x + self.down(torch.relu(self.up(self.norm_2(x))))


class Model(nn.Module):
    def __init__(self, vocabulary, context):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, 32))
        self.places = nn.Parameter(torch.randn(context, 32))
        self.layers = nn.Sequential(Layer(32), Layer(32))

    def forward(self, ids):
        x = self.table[ids] + self.places[: ids.shape[1]]
        return self.layers(x) @ self.table.T


def build(vocabulary, context):
    return Model(vocabulary, context)


def next_token_loss(logits, ids):
    logs = logits.log_softmax(-1)
    found = [logs[b, i, ids[b, i + 1]] for b in range(ids.shape[0]) for i in range(ids.shape[1] - 1)]
    return -torch.stack(found).mean()


def probabilities(logits, temperature=1.0, top_k=None, top_p=1.0):
    p = torch.softmax(logits / temperature, -1)
    order = sorted(range(len(p)), key=lambda token: -float(p[token]))[: top_k or len(p)]
    whole = sum(float(p[token]) for token in order)
    result, total = torch.zeros_like(p), 0.0
    for token in order:
        if total >= top_p:
            break
        result[token] = p[token]
        total += float(p[token]) / whole
    return result / result.sum()


def generate(model, ids, count, context, choose):
    written = [*ids]
    while len(written) < len(ids) + count:
        with torch.no_grad():
            logits = model(torch.tensor(written[-context:])[None])
        written = [*written, choose(logits[0][-1])]
    return written
