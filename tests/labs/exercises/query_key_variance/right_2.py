import math


def moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    variance_of_a_term = (q_deviation * k_deviation) ** 2
    return 0, sum(variance_of_a_term for _ in range(width))


def scaled_moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    return moments(1, q_deviation, k_deviation)


def weight_of_the_large_one(score: float, times: float, keys: int) -> float:
    top = max(score, times * score)
    large, other = math.exp(times * score - top), math.exp(score - top)
    return large / (large + (keys - 1) * other)
