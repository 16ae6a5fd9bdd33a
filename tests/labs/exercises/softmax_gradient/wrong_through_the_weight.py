# kind: lost in rounding
import torch
from torch import Tensor


def softmax(scores: Tensor) -> Tensor:
    exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def jacobian(scores: Tensor) -> Tensor:
    weights = softmax(scores)
    return torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)


def loss_gradient(scores: Tensor, target: Tensor) -> Tensor:
    wanted = torch.nn.functional.one_hot(target, scores.shape[-1])
    weights = softmax(scores)
    upstream = -wanted / weights.clamp(min=1e-30)
    return (jacobian(scores) @ upstream.unsqueeze(-1)).squeeze(-1)
