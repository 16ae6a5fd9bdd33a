# kind: a bias of the wide part is wrong

from tests.labs.exercises.parameter_counting.right_1 import attention_parameters, attention_weights


def block_parameters(width):
    return 12 * width**2 + 10 * width


def model_parameters(vocabulary, context, width, blocks):
    return (vocabulary + context) * width + blocks * block_parameters(width) + 2 * width


def feed_forward_share(vocabulary, context, width, blocks):
    return blocks * (8 * width**2 + 5 * width) / model_parameters(vocabulary, context, width, blocks)
