import torch
from torch import Tensor


def share_above(scores: Tensor) -> Tensor:
    peaks = torch.exp(scores.max(dim=1).values - scores.logsumexp(dim=1))
    return torch.count_nonzero(peaks > 0.3) / len(scores)


def measure(width: int, draws: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    normal = torch.distributions.Normal(0.0, 1.0)
    torch.manual_seed(seed)
    scores = (normal.sample(torch.Size((draws, 10, width))) @ normal.sample(torch.Size((draws, width, 1)))).squeeze(2)
    rooted = scores / torch.tensor(width).sqrt()
    spreads = [one.square().mean().sqrt() for one in (scores, rooted)]
    return spreads[0], spreads[1], share_above(scores), share_above(rooted)


def deviation_stays_near_one() -> bool:
    return True


def largest_weight_stays_under_0_30() -> bool:
    return False
