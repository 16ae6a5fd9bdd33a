# kind: as printed, not as measured
import torch

from tests.labs.exercises.scaling_rule.right_1 import deviation_stays_near_one


def measure(width: int, draws: int, seed: int) -> tuple[float, float, float, float]:
    torch.manual_seed(seed)
    products = torch.randn(draws, width).mul(torch.randn(draws, width)).sum(1)
    return products.std().item(), products.std().item() / width**0.5, 1.0, 0.0


def largest_weight_stays_under_0_30() -> bool:
    return True
