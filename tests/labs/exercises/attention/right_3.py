import torch
from torch import Tensor


def one_query(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.stack([(query * key).sum() for key in keys]) / len(query) ** 0.5
    weights = torch.exp(scores - torch.logsumexp(scores, 0))
    output = sum((weight * value for weight, value in zip(weights, values, strict=True)), torch.zeros_like(values[0]))
    return output, weights


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    if q.dim() > 2:
        pairs = [attend(*one) for one in zip(q, k, v, strict=True)]
    else:
        pairs = [one_query(query, k, v) for query in q]
    outputs, weights = zip(*pairs, strict=True)
    return torch.stack(outputs), torch.stack(weights)
