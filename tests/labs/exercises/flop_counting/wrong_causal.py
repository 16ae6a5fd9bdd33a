# kind: only half of the pairs

from tests.labs.exercises.flop_counting.right_1 import equal_length, rnn_flops, score_multiplications


def attention_flops(length, width, heads):
    return 2 * length * (length + 1) * width


def layer_flops(length, width, heads):
    return attention_flops(length, width, heads) + 8 * length * width**2


def doubling(length, width):
    return layer_flops(2 * length, width, 1) / layer_flops(length, width, 1)
