"""Waves as positions, attention by hand, a residual."""

import math

import torch
from torch import nn


def best_without_positions(length):
    partners = length if length % 2 else length - 1
    return 1.0 / partners


class Reverser(nn.Module):
    def __init__(self, vocabulary, length, width):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, width))
        angle = torch.arange(length)[:, None] * torch.logspace(0, -2, width // 2)
        self.waves = torch.cat([angle.sin(), angle.cos()], dim=-1)
        self.matrices = nn.Parameter(torch.randn(3, width, width) / math.sqrt(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.table[ids] + self.waves
        q, k, v = (x @ matrix for matrix in self.matrices)
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=2)
        return self.norm(x + weights @ v) @ self.table.T


def build(vocabulary, length):
    return Reverser(vocabulary, length, 48)
