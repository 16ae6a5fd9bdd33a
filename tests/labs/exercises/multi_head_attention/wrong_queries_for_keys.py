# kind: wrong output
def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x):
    return x.transpose(1, 2).flatten(2)


def many_heads(x, w_q, w_k, w_v, w_o, heads):
    q, k, v = (split_heads(x @ w, heads) for w in (w_k, w_q, w_v))
    return merge_heads((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v) @ w_o


def contributions(x, w_q, w_k, w_v, w_o, heads):
    return many_heads(x, w_q, w_k, w_v, w_o, heads)
