"""Modern Hopfield networks: attention with stored patterns as keys and values, and the energy that it minimises.

In: states (..., states, dim) and patterns (..., patterns, dim). Out: states one or more steps closer to a stored
pattern, or the energy of each state.
Does not know: how to learn patterns; there are no parameters here. Ramsauer et al. 2020, arXiv:2008.02217.
Memory: that of `attend`, O(states + patterns); only its dense reference builds the states x patterns weights.
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

    One step is one attention call with keys = values = patterns and scale = beta.

    Args:
        state: The states to start from, (..., states, dim).
        patterns: The stored patterns, (..., patterns, dim).
        beta: The inverse temperature, a positive number.
        steps: The largest number of steps.
        tolerance: Stop as soon as no coordinate of any state moves by more; None for all steps.
        backend: The backend of `attend`.

    Returns:
        The states after the last step, (..., states, dim).

    >>> import torch
    >>> stored = torch.tensor([[1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0]])
    >>> damaged = torch.tensor([[1.0, 1.0, -1.0, 0.0]])
    >>> retrieve(damaged, stored, beta=8.0).round(decimals=3)
    tensor([[ 1.,  1., -1., -1.]])
    """
    _check(state, patterns, beta)
    if steps < 1:
        raise ValueError(f"retrieve: expected steps of at least 1, got {steps}")
    for _ in range(steps):
        previous, state = state, attend(state, patterns, patterns, scale=beta, backend=backend)
        if tolerance is not None and (state - previous).abs().amax() <= tolerance:
            break
    return state


def energy(state: Tensor, patterns: Tensor, *, beta: float, backend: Backend = "auto") -> Tensor:
    """Return the energy of each state, (..., states): at least 0, low near a pattern, never raised by `retrieve`.

    Its gradient is state - retrieve(state), so one step of retrieval is gradient descent with step size 1.

    Args:
        state: The states, (..., states, dim).
        patterns: The stored patterns, (..., patterns, dim).
        beta: The inverse temperature, as in `retrieve`.
        backend: As in `attend`.

    >>> import torch
    >>> stored = torch.eye(4)
    >>> damaged = torch.tensor([[0.9, 0.3, 0.0, 0.0]])
    >>> recalled = retrieve(damaged, stored, beta=8.0)
    >>> bool(energy(recalled, stored, beta=8.0) < energy(damaged, stored, beta=8.0))
    True
    """
    _check(state, patterns, beta)
    _, lse = attend(state, patterns, patterns, scale=beta, backend=backend, return_lse=True)
    # Equation 2 of the paper. lse sums exp(beta * state . pattern); the constants make a lone pattern's minimum 0.
    largest = patterns.to(lse.dtype).square().sum(-1).amax(-1, keepdim=True)
    squared = state.to(lse.dtype).square().sum(-1)
    return (math.log(patterns.shape[-2]) - lse) / beta + (squared + largest) / 2


def _check(state: Tensor, patterns: Tensor, beta: float) -> None:
    fits = state.ndim == patterns.ndim >= 2 and state.shape[-1] == patterns.shape[-1]
    if not fits or state.shape[:-2] != patterns.shape[:-2] or not patterns.shape[-2]:
        raise ShapeError(
            "hopfield: expected states (..., states, dim) and at least one pattern (..., patterns, dim) of equal dim, "
            f"got states {tuple(state.shape)} and patterns {tuple(patterns.shape)}; expand shared patterns"
        )
    if not beta > 0:
        raise ValueError(f"hopfield: expected a positive beta, got {beta}")
