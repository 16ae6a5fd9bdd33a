"""The delta rule: linear attention that replaces the value of a key, where the plain sum would add to it.

In: query and key (..., heads, positions, dim), value (..., heads, positions, value dim), a writing strength beta
(..., heads, positions), a `State` to continue from. Out: (..., heads, positions, value dim) and the `State` after.
A token reads the value of its key k, S k, and writes the difference: S <- S + beta (v - S k) k^T. With |k| = 1,
beta = 1 replaces the old value and beta = 0 keeps it.
Does not know: masks (it is causal), positions, normalisation (with keys longer than 1 the state can grow).
Memory: `recurrent` O(n) for the output and O(1) for the state; `chunked` O(n), the same results in fewer, larger steps.
"""

import torch
from torch import Tensor

from attnscope.errors import ShapeError
from attnscope.variants.linear import State, Update, check_shapes, compute_dtype, initial_state, scan


def recurrent(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: State | None = None
) -> tuple[Tensor, State]:
    """Compute the delta rule token by token: the definition.

    Args:
        query: (..., heads, positions, dim).
        key: (..., heads, positions, dim), of norm 1.
        value: (..., heads, positions, value dim).
        beta: The writing strength of each token, (..., heads, positions).
        state: The state to continue from.

    Returns:
        The output (..., heads, positions, value dim) and the state after the last token.

    >>> key = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> output, state = recurrent(key, key, torch.tensor([[5.0], [7.0]]), torch.ones(2))
    >>> output
    tensor([[5.],
            [7.]])
    """
    return _run(_update_token, query, key, value, beta, state, chunk_size=1)


def chunked(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: State | None = None, chunk_size: int = 64
) -> tuple[Tensor, State]:
    """Compute the same as `recurrent`, by one triangular system per chunk (Yang et al. 2024, arXiv:2406.06484).

    Args:
        query: Queries, (..., tokens, dim).
        key: Keys, (..., tokens, dim), normalized.
        value: Values, (..., tokens, value dim).
        beta: The strength of each write, (..., tokens), from 0 to 1.
        state: The state before the first token; None is empty.
        chunk_size: The number of tokens in a chunk.

    Returns:
        The outputs, (..., tokens, value dim), and the state after the last token.

    >>> key = torch.nn.functional.normalize(torch.randn(2, 9, 4), dim=-1)
    >>> value, beta = torch.randn(2, 9, 3), torch.rand(2, 9)
    >>> torch.allclose(chunked(key, key, value, beta, chunk_size=4)[0], recurrent(key, key, value, beta)[0], atol=1e-4)
    True
    """
    if chunk_size < 1:
        raise ShapeError(f"expected chunk_size of at least 1, got {chunk_size}")
    return _run(_update_chunk, query, key, value, beta, state, chunk_size=chunk_size)


def step(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, state: State | None = None
) -> tuple[Tensor, State]:
    """Process one token, (..., heads, dim) and beta (..., heads), and return its output and the next state.

    Args:
        query: The query of the token.
        key: Its key, normalized.
        value: Its value, (..., heads, value dim).
        beta: The strength of the write, from 0 to 1.
        state: The state before the token; None is empty.

    Returns:
        The output, (..., heads, value dim), and the state after the token.

    >>> key = torch.tensor([[1.0, 0.0]])
    >>> _, state = step(key, key, torch.tensor([[5.0]]), torch.ones(1))
    >>> step(key, key, torch.tensor([[9.0]]), torch.full((1,), 0.5), state=state)[0]
    tensor([[7.]])
    """
    query, key, value, beta = query.unsqueeze(-2), key.unsqueeze(-2), value.unsqueeze(-2), beta.unsqueeze(-1)
    output, after = _run(_update_token, query, key, value, beta, state, chunk_size=1)
    return output.squeeze(-2), after


def _run(
    update: Update, query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: State | None, *, chunk_size: int
) -> tuple[Tensor, State]:
    """Check shapes, cast half precision to float32, and scan."""
    check_shapes(query, key, value)
    if beta.shape != value.shape[:-1]:
        raise ShapeError(
            f"delta rule: expected beta (..., heads, positions) = {tuple(value.shape[:-1])}, got {tuple(beta.shape)}"
        )
    inputs = tuple(tensor.to(compute_dtype(value)) for tensor in (query, key, value, beta.unsqueeze(-1)))
    state = initial_state(inputs[1], inputs[2], normalize=False, state=state)
    return scan(update, inputs, state, chunk_size=chunk_size, dtype=value.dtype)


def _update_token(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: State) -> tuple[Tensor, State]:
    """Process one token, (..., heads, 1, dim): write the difference to the value of its key, then read."""
    change = beta * (value - key @ state.matrix.mT)
    matrix = torch.addcmul(state.matrix, change.mT, key)
    return query @ matrix.mT, State(matrix, None)


def _update_chunk(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: State) -> tuple[Tensor, State]:
    """Process a chunk: each change depends on the earlier ones, which is a lower triangular system."""
    # change_t = beta_t (v_t - S k_t - sum over j < t of (k_j . k_t) change_j), with S the state before the chunk. The
    # diagonal of the system is 1 and implied.
    earlier = (beta * (key @ key.mT)).tril(-1)
    change = beta * (value - key @ state.matrix.mT)
    change = torch.linalg.solve_triangular(earlier, change, upper=False, unitriangular=True)
    output = query @ state.matrix.mT + (query @ key.mT).tril() @ change
    return output, State(state.matrix + change.mT @ key, None)
