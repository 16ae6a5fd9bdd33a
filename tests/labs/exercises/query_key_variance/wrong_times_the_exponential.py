# kind: wrong weight
import math

from tests.labs.exercises.query_key_variance.right_1 import moments, scaled_moments


def weight_of_the_large_one(score: float, times: float, keys: int) -> float:
    return times * math.exp(score) / (times * math.exp(score) + (keys - 1) * math.exp(score)) ** 2
