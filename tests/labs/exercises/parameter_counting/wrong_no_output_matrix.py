# kind: the output matrix is missing

from tests.labs.exercises.parameter_counting.right_1 import block_parameters, feed_forward_share, model_parameters


def attention_weights(width, heads, head_width):
    return 3 * width * heads * head_width


def attention_parameters(width, heads, head_width):
    return attention_weights(width, heads, head_width) + 3 * heads * head_width + width
