# kind: wrong Jacobian
import torch
from torch import Tensor


def softmax(scores: Tensor) -> Tensor:
    exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def jacobian(scores: Tensor) -> Tensor:
    weights = softmax(scores)
    return torch.diag_embed(weights) + weights.unsqueeze(-1) * weights.unsqueeze(-2)


def loss_gradient(scores: Tensor, target: Tensor) -> Tensor:
    wanted = torch.nn.functional.one_hot(target, scores.shape[-1])
    return softmax(scores) - wanted
