# kind: shifted the wrong way
import torch
from torch import Tensor


def frequencies(width: int) -> Tensor:
    return 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def encode(length: int, width: int) -> Tensor:
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies(width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def shift_matrix(offset: int, width: int) -> Tensor:
    angles = offset * frequencies(width)
    blocks = [torch.tensor([[a.cos(), a.sin()], [-a.sin(), a.cos()]]) for a in angles]
    return torch.block_diag(*blocks).float()


def similarity(offset: int, width: int) -> float:
    return (offset * frequencies(width)).cos().sum().item()
