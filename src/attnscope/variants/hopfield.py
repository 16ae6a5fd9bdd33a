"""Modern Hopfield networks: attention whose keys and values are stored patterns, and the energy that it descends.

In: states (..., state, dim) and patterns (..., pattern, dim), any real numbers. Out: states one or more steps closer to
what is stored, or the energy of each state.
Does not know: how to learn patterns; there are no weights here. Ramsauer et al. 2020, arXiv:2008.02217.
Memory: that of `attend`, O(states + patterns): only its dense reference builds the matrix states x patterns.
"""

import math

from torch import Tensor

from attnscope.attention.operation import Backend, attend
from attnscope.errors import ShapeError


def retrieve(
    state: Tensor,
    patterns: Tensor,
    *,
    beta: float,
    steps: int = 1,
    tolerance: float | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Replace each state by the softmax(beta * state . pattern) average of the patterns, up to `steps` times.

    One step is one attention call with keys = values = patterns and scale = beta. With a `tolerance`, stop as soon as
    no coordinate of any state moves by more. State and result (..., state, dim), patterns (..., pattern, dim).

    >>> import torch
    >>> stored = torch.tensor([[1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0]])
    >>> damaged = torch.tensor([[1.0, 1.0, -1.0, 0.0]])
    >>> retrieve(damaged, stored, beta=8.0).round(decimals=3)
    tensor([[ 1.,  1., -1., -1.]])
    """
    _require_fit(state, patterns, beta)
    if steps < 1:
        raise ValueError(f"retrieve makes at least one step, but steps is {steps}")
    for _ in range(steps):
        previous, state = state, attend(state, patterns, patterns, scale=beta, backend=backend)
        if tolerance is not None and (state - previous).abs().amax() <= tolerance:
            break
    return state


def energy(state: Tensor, patterns: Tensor, *, beta: float, backend: Backend = "auto") -> Tensor:
    """The energy of each state, (..., state): at least 0, low near a pattern, and never raised by a step of `retrieve`.

    Its gradient is state - retrieve(state), so a step of retrieval is a step of gradient descent of length 1.

    >>> import torch
    >>> stored = torch.eye(4)
    >>> damaged = torch.tensor([[0.9, 0.3, 0.0, 0.0]])
    >>> recalled = retrieve(damaged, stored, beta=8.0)
    >>> bool(energy(recalled, stored, beta=8.0) < energy(damaged, stored, beta=8.0))
    True
    """
    _require_fit(state, patterns, beta)
    _, lse = attend(state, patterns, patterns, scale=beta, backend=backend, return_lse=True)
    # Equation 2 of the paper. lse sums exp(beta * state . pattern); the constants make a lone pattern's minimum 0.
    largest = patterns.to(lse.dtype).square().sum(-1).amax(-1, keepdim=True)
    squared = state.to(lse.dtype).square().sum(-1)
    return (math.log(patterns.shape[-2]) - lse) / beta + (squared + largest) / 2


def _require_fit(state: Tensor, patterns: Tensor, beta: float) -> None:
    fits = state.ndim == patterns.ndim >= 2 and state.shape[-1] == patterns.shape[-1]
    if not fits or state.shape[:-2] != patterns.shape[:-2] or not patterns.shape[-2]:
        raise ShapeError(
            "states (..., state, dim) and at least one pattern (..., pattern, dim) of the same width are needed, "
            f"but got states {tuple(state.shape)} and patterns {tuple(patterns.shape)}; expand patterns that are shared"
        )
    if not beta > 0:
        raise ValueError(f"beta is an inverse temperature and must be positive, but is {beta}")
