# kind: guessing among too many

from tests.labs.exercises.sequence_reversal.right_1 import build


def best_without_positions(length):
    return 1 / length
