# kind: first terms without an addition
def score_multiplications(length, head_width):
    return length * length * head_width


def attention_flops(length, width, heads):
    return heads * length**2 * (2 * width // heads - 1) + length * width * (2 * length - 1)


def layer_flops(length, width, heads):
    return attention_flops(length, width, heads) + 8 * length * width**2


def rnn_flops(length, width):
    return 4 * length * width**2


def equal_length(width):
    return width


def doubling(length, width):
    return layer_flops(2 * length, width, 1) / layer_flops(length, width, 1)
