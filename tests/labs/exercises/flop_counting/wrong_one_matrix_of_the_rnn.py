# kind: half missing

from tests.labs.exercises.flop_counting.right_1 import (
    attention_flops,
    doubling,
    equal_length,
    layer_flops,
    score_multiplications,
)


def rnn_flops(length, width):
    return 2 * length * width**2
