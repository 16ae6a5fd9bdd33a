# kind: not equal there

from tests.labs.exercises.flop_counting.right_1 import (
    attention_flops,
    doubling,
    layer_flops,
    rnn_flops,
    score_multiplications,
)


def equal_length(width):
    return 2 * width
