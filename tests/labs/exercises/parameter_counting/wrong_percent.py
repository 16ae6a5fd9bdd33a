# kind: not a share

from tests.labs.exercises.parameter_counting.right_1 import (
    attention_parameters,
    attention_weights,
    block_parameters,
    model_parameters,
)


def feed_forward_share(vocabulary, context, width, blocks):
    return 100 * blocks * (8 * width**2 + 5 * width) / model_parameters(vocabulary, context, width, blocks)
