"""The delta rule: linear attention that corrects what a key already holds, where the plain sum would pile up on it.

In: queries and keys (..., head, position, key), values (..., head, position, value), a writing strength beta
(..., head, position), a `State` to continue from. Out: (..., head, position, value) and the `State` after.
A token reads what its key k holds, S k, and writes the difference: S <- S + beta (v - S k) k^T. With |k| = 1, beta = 1
replaces the old value and beta = 0 leaves it.
Does not know: masks (it is causal), positions, normalisation (with keys longer than 1 the memory can grow without end).
Memory: `recurrent` O(n) for the output and O(1) for the state; `chunked` O(n), the same numbers in fewer, larger steps.
"""

import torch
from torch import Tensor

from attnscope.errors import ShapeError
from attnscope.variants.linear import State, Update, require_fit, scan, state_for, working_dtype


def recurrent(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: State | None = None
) -> tuple[Tensor, State]:
    """Write and read token by token: the definition.

    >>> key = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> output, state = recurrent(key, key, torch.tensor([[5.0], [7.0]]), torch.ones(2))
    >>> output
    tensor([[5.],
            [7.]])
    """
    return _run(_token, query, key, value, beta, state, chunk=1)


def chunked(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: State | None = None, chunk: int = 64
) -> tuple[Tensor, State]:
    """The same numbers, one triangular system for each chunk of tokens (Yang et al. 2024, arXiv:2406.06484).

    >>> key = torch.nn.functional.normalize(torch.randn(2, 9, 4), dim=-1)
    >>> value, beta = torch.randn(2, 9, 3), torch.rand(2, 9)
    >>> torch.allclose(chunked(key, key, value, beta, chunk=4)[0], recurrent(key, key, value, beta)[0], atol=1e-4)
    True
    """
    if chunk < 1:
        raise ShapeError(f"chunk counts tokens and must be at least 1, but is {chunk}")
    return _run(_block, query, key, value, beta, state, chunk=chunk)


def step(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: State | None = None
) -> tuple[Tensor, State]:
    """Read one token and give its output and the next state; no position axis: (..., head, dim), and beta (..., head).

    >>> key = torch.tensor([[1.0, 0.0]])
    >>> _, state = step(key, key, torch.tensor([[5.0]]), torch.ones(1))
    >>> step(key, key, torch.tensor([[9.0]]), torch.full((1,), 0.5), state=state)[0]
    tensor([[7.]])
    """
    query, key, value, beta = query.unsqueeze(-2), key.unsqueeze(-2), value.unsqueeze(-2), beta.unsqueeze(-1)
    output, after = _run(_token, query, key, value, beta, state, chunk=1)
    return output.squeeze(-2), after


def _run(
    update: Update, query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: State | None, *, chunk: int
) -> tuple[Tensor, State]:
    """Check shapes, widen half precision to float32, and scan."""
    require_fit(query, key, value)
    if beta.shape != value.shape[:-1]:
        raise ShapeError(
            f"beta is one strength for each token, (..., head, position) = {tuple(value.shape[:-1])}, "
            f"but has shape {tuple(beta.shape)}"
        )
    inputs = tuple(tensor.to(working_dtype(value)) for tensor in (query, key, value, beta.unsqueeze(-1)))
    state = state_for(inputs[1], inputs[2], normalize=False, state=state)
    return scan(update, inputs, state, chunk=chunk, dtype=value.dtype)


def _token(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: State) -> tuple[Tensor, State]:
    """One token, (..., head, 1, dim): write the difference to what its key holds, then read."""
    change = beta * (value - key @ state.matrix.mT)
    matrix = torch.addcmul(state.matrix, change.mT, key)
    return query @ matrix.mT, State(matrix, None)


def _block(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: State) -> tuple[Tensor, State]:
    """Many tokens at once: each change depends on the earlier ones, which is a lower triangular system."""
    # change_t = beta_t (v_t - S k_t - sum over j < t of (k_j . k_t) change_j), with S the state before the chunk. The
    # diagonal of the system is 1 and implied.
    earlier = (beta * (key @ key.mT)).tril(-1)
    change = beta * (value - key @ state.matrix.mT)
    change = torch.linalg.solve_triangular(earlier, change, upper=False, unitriangular=True)
    output = query @ state.matrix.mT + (query @ key.mT).tril() @ change
    return output, State(state.matrix + change.mT @ key, None)
