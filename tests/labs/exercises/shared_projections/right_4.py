def as_one_head(w_q, w_k, w_v, w_o, heads):
    h = heads
    return w_q.repeat(1, h) / h**0.25, w_k.repeat(1, h) / h**0.25, w_v.repeat(1, h), w_o


def largest_rank(d, w, heads, shared):
    return min(d, w * (1 if shared else heads))


def gradient_of_w_o(head, upstream, heads):
    return (head.T @ upstream).repeat(heads, 1)
