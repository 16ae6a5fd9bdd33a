import math
from fractions import Fraction


def moments(width, q_deviation, k_deviation):
    return 0, width * Fraction(q_deviation) ** 2 * Fraction(k_deviation) ** 2


def scaled_moments(width, q_deviation, k_deviation):
    return 0, (q_deviation * k_deviation) ** 2


def weight_of_the_large_one(score, times, keys):
    if keys == 1:
        return 1.0
    x = (times - 1) * score - math.log(keys - 1)
    return 0.5 * (1 + math.tanh(x / 2))
