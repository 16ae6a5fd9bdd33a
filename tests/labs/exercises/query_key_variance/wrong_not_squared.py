# kind: deviations not squared

from tests.labs.exercises.query_key_variance.right_1 import weight_of_the_large_one


def moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    return 0.0, width * q_deviation * k_deviation


def scaled_moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    mean, variance = moments(width, q_deviation, k_deviation)
    return mean, variance / width
