# kind: the middle is forgotten

from tests.labs.exercises.sequence_reversal.right_1 import build


def best_without_positions(length):
    return 1 / max(length - 1, 1)
