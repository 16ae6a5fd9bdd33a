# kind: not a share
def attention_weights(width, heads, head_width):
    return 4 * width * heads * head_width


def attention_parameters(width, heads, head_width):
    return attention_weights(width, heads, head_width) + 3 * heads * head_width + width


def block_parameters(width):
    return 12 * width**2 + 13 * width


def model_parameters(vocabulary, context, width, blocks):
    return (vocabulary + context) * width + blocks * block_parameters(width) + 2 * width


def feed_forward_share(vocabulary, context, width, blocks):
    return 100 * blocks * (8 * width**2 + 5 * width) / model_parameters(vocabulary, context, width, blocks)
