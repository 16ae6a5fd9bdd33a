# kind: the variance is divided like the number
import math

from tests.labs.exercises.query_key_variance.right_1 import moments, weight_of_the_large_one


def scaled_moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    mean, variance = moments(width, q_deviation, k_deviation)
    return mean, variance / math.sqrt(width)
