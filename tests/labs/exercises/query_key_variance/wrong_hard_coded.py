# kind: wrong variance
import torch


def moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    return 0.0, 64 * q_deviation**2 * k_deviation**2


def scaled_moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    mean, variance = moments(width, q_deviation, k_deviation)
    return mean, variance / width


def weight_of_the_large_one(score: float, times: float, keys: int) -> float:
    scores = torch.full((keys,), score, dtype=torch.float64)
    scores[0] = times * score
    return scores.softmax(0)[0].item()
