import torch


def causal_mask(length):
    m = torch.zeros(length, length)
    for i in range(length):
        m[i, i + 1 :] = -torch.inf
    return m


def causal_weights(scores, is_real=None):
    n = scores.shape[-1]
    lead = scores.shape[:-2]
    flat = scores.reshape(-1, n, n)
    real = (
        torch.ones(flat.shape[0], n, dtype=torch.bool) if is_real is None else is_real.expand(*lead, n).reshape(-1, n)
    )
    out = []
    for b in range(flat.shape[0]):
        rows = []
        for i in range(n):
            seen = [j for j in range(i + 1) if real[b, j]]
            row = torch.zeros(n, dtype=scores.dtype)
            if seen:
                row = row.index_put((torch.tensor(seen),), flat[b, i, seen].softmax(0))
            rows.append(row)
        out.append(torch.stack(rows))
    return torch.stack(out).reshape(scores.shape)
