# kind: no softmax
import torch

from tests.labs.exercises.query_key_variance.right_1 import moments, scaled_moments


def weight_of_the_large_one(score: float, times: float, keys: int) -> float:
    scores = torch.full((keys,), score, dtype=torch.float64)
    scores[0] = times * score
    return (scores[0] / scores.sum()).item()
