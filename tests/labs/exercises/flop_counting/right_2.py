"""One function counts a product of matrices; the rest lists products."""


def product(rows, inner, columns):
    return 2 * rows * inner * columns


def score_multiplications(length, head_width):
    return product(length, head_width, length) // 2


def attention_flops(length, width, heads):
    each = width // heads
    return sum(product(length, each, length) + product(length, length, each) for _ in range(heads))


def layer_flops(length, width, heads):
    made = [product(length, width, width) for _ in ("queries", "keys", "values", "output")]
    return sum(made, attention_flops(length, width, heads))


def rnn_flops(length, width):
    return sum(2 * product(width, width, 1) for _ in range(length))


def equal_length(width):
    return next(n for n in range(1, 10_000) if attention_flops(n, width, 1) == rnn_flops(n, width))


def doubling(length, width):
    return (8 * width + 8 * length) / (4 * width + 2 * length)
