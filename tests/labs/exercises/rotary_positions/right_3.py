import math

import torch


def matrix(position, width):
    blocks = []
    for i in range(width // 2):
        a = position / 10000 ** (2 * i / width)
        blocks.append(torch.tensor([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]], dtype=torch.float64))
    return torch.block_diag(*blocks)


def rotate(x, positions):
    rows = [x[..., i, :].double() @ matrix(int(p), x.shape[-1]) for i, p in enumerate(positions)]
    return torch.stack(rows, dim=-2).to(x.dtype)


def scores(q, k, q_positions, k_positions):
    return rotate(q, q_positions) @ rotate(k, k_positions).transpose(-1, -2) / math.sqrt(q.shape[-1])


def relative_score(q, k, distance):
    here, there = torch.tensor([100]), torch.tensor([100 + distance])
    return scores(q[None], k[None], here, there)[0, 0]
