# kind: a bias is missing

from tests.labs.exercises.parameter_counting.right_1 import (
    attention_weights,
    block_parameters,
    feed_forward_share,
    model_parameters,
)


def attention_parameters(width, heads, head_width):
    return attention_weights(width, heads, head_width) + 3 * heads * head_width
