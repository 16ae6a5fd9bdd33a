import math

import torch
from torch import Tensor


def moments(width: int, q_deviation: float, k_deviation: float) -> tuple[Tensor, Tensor]:
    q_variance = torch.full((width,), q_deviation, dtype=torch.float64).square()
    k_variance = torch.full((width,), k_deviation, dtype=torch.float64).square()
    return torch.tensor(0.0), q_variance @ k_variance


def scaled_moments(width: int, q_deviation: float, k_deviation: float) -> tuple[Tensor, Tensor]:
    root = math.sqrt(width)
    return moments(width, q_deviation / root, k_deviation)


def weight_of_the_large_one(score: float, times: float, keys: int) -> Tensor:
    lead = torch.tensor(score * (times - 1) - math.log(keys - 1), dtype=torch.float64)
    return torch.sigmoid(lead)
