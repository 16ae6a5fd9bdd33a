# kind: keys miscounted
import math

from tests.labs.exercises.query_key_variance.right_1 import moments, scaled_moments


def weight_of_the_large_one(score: float, times: float, keys: int) -> float:
    large, other = math.exp(times * score), math.exp(score)
    return large / (large + keys * other)
