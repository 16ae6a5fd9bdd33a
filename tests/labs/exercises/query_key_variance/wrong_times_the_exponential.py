# kind: wrong weight
import math


def moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    return 0.0, width * q_deviation**2 * k_deviation**2


def scaled_moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    mean, variance = moments(width, q_deviation, k_deviation)
    return mean, variance / width


def weight_of_the_large_one(score: float, times: float, keys: int) -> float:
    return times * math.exp(score) / (times * math.exp(score) + (keys - 1) * math.exp(score)) ** 2
