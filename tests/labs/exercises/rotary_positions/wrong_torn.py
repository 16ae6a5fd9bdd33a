# kind: pairs are torn apart
import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    width = x.shape[-1]
    frequencies = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = positions[:, None].double() * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def scores(q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    return rotate(q, q_positions) @ rotate(k, k_positions).mT / q.shape[-1] ** 0.5


def relative_score(q: Tensor, k: Tensor, distance: int) -> float:
    rotated = rotate(k[None], torch.tensor([distance]))[0]
    return (q @ rotated / len(q) ** 0.5).item()
