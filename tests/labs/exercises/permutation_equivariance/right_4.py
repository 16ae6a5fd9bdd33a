import torch


def _p(order, dtype):
    return torch.nn.functional.one_hot(order, len(order)).to(dtype)


def is_equivariant(layer, x, order):
    p = _p(order, x.dtype)
    a, b = layer(p @ x), p @ layer(x)
    return bool(((a - b).norm() <= 1e-4 * (1 + b.norm())).item())


def is_invariant(layer, x, order):
    a, b = layer(x[order]), layer(x)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def counterexample(layer, length, width):
    g = torch.Generator().manual_seed(0)
    for _ in range(50):
        x, o = torch.randn(length, width, generator=g, dtype=torch.float64), torch.randperm(length, generator=g)
        if not is_equivariant(layer, x, o):
            return x, o
    return None
