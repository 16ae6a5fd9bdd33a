# kind: additions counted as well

from tests.labs.exercises.flop_counting.right_1 import attention_flops, doubling, equal_length, layer_flops, rnn_flops


def score_multiplications(length, head_width):
    return 2 * length * length * head_width
