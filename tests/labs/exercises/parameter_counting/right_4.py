import torch
from torch import nn


def _n(m):
    return sum(p.numel() for p in m.parameters())


def attention_weights(width, heads, head_width):
    return heads * head_width * width * 4


def attention_parameters(width, heads, head_width):
    return attention_weights(width, heads, head_width) + 3 * heads * head_width + width


def block_parameters(width):
    with torch.device("meta"):
        return _n(nn.TransformerEncoderLayer(width, 1, 4 * width))


def model_parameters(vocabulary, context, width, blocks):
    return (vocabulary + context + 2) * width + blocks * block_parameters(width)


def feed_forward_share(vocabulary, context, width, blocks):
    from fractions import Fraction

    return Fraction(blocks * (8 * width**2 + 5 * width), model_parameters(vocabulary, context, width, blocks))
