# kind: everything taken as quadratic

from tests.labs.exercises.flop_counting.right_1 import (
    attention_flops,
    equal_length,
    layer_flops,
    rnn_flops,
    score_multiplications,
)


def doubling(length, width):
    return 4.0
