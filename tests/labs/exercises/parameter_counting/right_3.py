"""Lists of shapes."""

from math import prod


def total(shapes):
    return sum(map(prod, shapes))


def matrices(width, heads, head_width):
    own = [(width, head_width)] * 3 * heads
    return [*own, (heads * head_width, width)]


def attention_weights(width, heads, head_width):
    return total(matrices(width, heads, head_width))


def attention_parameters(width, heads, head_width):
    shapes = matrices(width, heads, head_width)
    return total(shapes) + sum(columns for _, columns in shapes)


def wide(width):
    return [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]


def block_parameters(width):
    gains_and_shifts = [(width,)] * 4
    return attention_parameters(width, width, 1) + total(wide(width) + gains_and_shifts)


def model_parameters(vocabulary, context, width, blocks):
    tables = [(vocabulary, width), (context, width)]
    return total([*tables, (2, width)]) + sum([block_parameters(width)] * blocks)


def feed_forward_share(vocabulary, context, width, blocks):
    inside = total(wide(width) * blocks)
    outside = model_parameters(vocabulary, context, width, blocks) - inside
    return inside / (inside + outside)
