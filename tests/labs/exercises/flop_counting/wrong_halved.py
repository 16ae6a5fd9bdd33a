# kind: another ratio

from tests.labs.exercises.flop_counting.right_1 import (
    attention_flops,
    equal_length,
    layer_flops,
    rnn_flops,
    score_multiplications,
)


def doubling(length, width):
    return layer_flops(length, width, 1) / layer_flops(2 * length, width, 1)
