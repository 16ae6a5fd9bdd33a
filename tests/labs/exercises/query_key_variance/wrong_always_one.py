# kind: always one

from tests.labs.exercises.query_key_variance.right_1 import moments, weight_of_the_large_one


def scaled_moments(width: int, q_deviation: float, k_deviation: float) -> tuple[float, float]:
    return 0.0, 1.0
