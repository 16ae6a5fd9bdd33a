# kind: multiplications taken for FLOPs

from tests.labs.exercises.flop_counting.right_1 import attention_flops, equal_length, rnn_flops, score_multiplications


def layer_flops(length, width, heads):
    return attention_flops(length, width, heads) + 4 * length * width**2


def doubling(length, width):
    return layer_flops(2 * length, width, 1) / layer_flops(length, width, 1)
