# kind: every weight counted
import math

import torch

from tests.labs.exercises.scaling_rule.right_1 import deviation_stays_near_one, largest_weight_stays_under_0_30


def measure(width: int, draws: int, seed: int) -> tuple[float, float, float, float]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(draws, width, generator=generator)
    keys = torch.randn(draws, 10, width, generator=generator)
    products = torch.einsum("nd,nkd->nk", q, keys)
    scaled = products / math.sqrt(width)
    above = (products.softmax(-1) > 0.30).float().mean()
    scaled_above = (scaled.softmax(-1) > 0.30).float().mean()
    return products.std().item(), scaled.std().item(), above.item(), scaled_above.item()
