"""Build the model on the meta device and let torch count."""

import torch
from torch import nn


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def attention(width, inner, bias):
    with torch.device("meta"):
        return nn.ModuleList([*(nn.Linear(width, inner, bias) for _ in range(3)), nn.Linear(inner, width, bias)])


def attention_weights(width, heads, head_width):
    return count(attention(width, heads * head_width, False))


def attention_parameters(width, heads, head_width):
    return count(attention(width, heads * head_width, True))


def wide(width):
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def block_parameters(width):
    with torch.device("meta"):
        norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        return count(nn.MultiheadAttention(width, 1)) + count(wide(width)) + count(norms)


def model_parameters(vocabulary, context, width, blocks):
    with torch.device("meta"):
        rest = nn.ModuleList([nn.Embedding(vocabulary, width), nn.Embedding(context, width), nn.LayerNorm(width)])
        return count(rest) + sum(block_parameters(width) for _ in range(blocks))


def feed_forward_share(vocabulary, context, width, blocks):
    whole = model_parameters(vocabulary, context, width, blocks)
    return sum(count(wide(width)) for _ in range(blocks)) / whole
