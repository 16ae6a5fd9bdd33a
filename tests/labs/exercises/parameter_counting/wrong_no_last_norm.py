# kind: the last norm is missing

from tests.labs.exercises.parameter_counting.right_1 import attention_parameters, attention_weights, block_parameters


def model_parameters(vocabulary, context, width, blocks):
    return (vocabulary + context) * width + blocks * block_parameters(width)


def feed_forward_share(vocabulary, context, width, blocks):
    return blocks * (8 * width**2 + 5 * width) / model_parameters(vocabulary, context, width, blocks)
