"""Linear attention: phi(q).phi(k) replaces exp(q.k), so the past fits in one matrix, the fast weights.

In: query and key (..., heads, positions, dim), value (..., heads, positions, value dim), a feature map phi, a `State`
to continue from. Out: (..., heads, positions, value dim) and the `State` after the last token.
Does not know: masks (it is causal; `bidirectional` is not), positions, dropout, grouped heads. Sums are in float32, or
float64 for float64 inputs. The causal operation has three forms:
  parallel   dense code, O(n^2) memory and time: the reference
  chunked    parallel within a chunk, the state between chunks: O(n) memory and time
  recurrent  token by token: O(n) memory for the output and O(1) for the state; `step` is one token of it
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import ShapeError

FeatureMap = Callable[[Tensor], Tensor]


class State(NamedTuple):
    """The state of linear attention after some tokens; its size does not depend on their number."""

    matrix: Tensor
    """The sum of outer(value, phi(key)) over the tokens, (..., heads, value dim, features)."""
    normaliser: Tensor | None
    """The sum of phi(key), (..., heads, features), or None if outputs are not normalised."""


Update = Callable[..., tuple[Tensor, State]]


def elu_plus_one(x: Tensor) -> Tensor:
    """Return the positive feature map elu(x) + 1 (Katharopoulos et al. 2020, arXiv:2006.16236, equation 7).

    Args:
        x: Queries or keys, of any shape.

    >>> elu_plus_one(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0.3679, 1.0000, 3.0000])
    """
    # elu(x) + 1 is exp(x) below 0; written so, it keeps its digits where elu(x) is nearly -1.
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def identity(x: Tensor) -> Tensor:
    """Return x, no feature map: with normalize=False this is the fast weight programmer (arXiv:2102.11174, section 3).

    Args:
        x: Queries or keys, of any shape.

    >>> identity(torch.tensor([-1.0, 2.0]))
    tensor([-1.,  2.])
    """
    return x


def parallel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: FeatureMap = elu_plus_one,
    normalize: bool = True,
    state: State | None = None,
) -> tuple[Tensor, State]:
    """Compute causal linear attention as one masked matrix of scores, in O(n^2): the reference for the other forms.

    A row whose normaliser is exactly 0 has output 0.

    Args:
        query: (..., heads, positions, dim).
        key: (..., heads, positions, dim).
        value: (..., heads, positions, value dim).
        feature_map: Maps queries and keys to features.
        normalize: Whether to divide by the sum of the scores.
        state: The state to continue from.

    Returns:
        The output (..., heads, positions, value dim) and the state after the last token.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> output, state = parallel(x, x, x, feature_map=identity, normalize=False)
    >>> output
    tensor([[1., 0.],
            [0., 1.],
            [3., 3.]])
    """
    features = _features(query, key, value, feature_map)
    output, state = _update_chunk(*features, initial_state(*features[1:], normalize=normalize, state=state))
    return output.to(value.dtype), state


def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: FeatureMap = elu_plus_one,
    normalize: bool = True,
    state: State | None = None,
    chunk_size: int = 128,
) -> tuple[Tensor, State]:
    """Compute causal linear attention in O(n) memory: dense within chunks of tokens, the state between them.

    The other arguments and the results are those of `parallel`.

    Args:
        query: Queries, (..., tokens, dim).
        key: Keys, (..., tokens, dim).
        value: Values, (..., tokens, value dim).
        feature_map: Applied to queries and keys.
        normalize: Whether each output is divided by the sum of its weights.
        state: The state before the first token; None is empty.
        chunk_size: The number of tokens in a chunk.

    Returns:
        The outputs, (..., tokens, value dim), and the state after the last token.

    >>> x = torch.randn(2, 1000, 8)
    >>> output, state = chunked(x, x, x)
    >>> output.shape, state.matrix.shape
    (torch.Size([2, 1000, 8]), torch.Size([2, 8, 8]))
    """
    if chunk_size < 1:
        raise ShapeError(f"expected chunk_size of at least 1, got {chunk_size}")
    features = _features(query, key, value, feature_map)
    return scan(
        _update_chunk,
        features,
        initial_state(*features[1:], normalize=normalize, state=state),
        chunk_size=chunk_size,
        dtype=value.dtype,
    )


def recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: FeatureMap = elu_plus_one,
    normalize: bool = True,
    state: State | None = None,
) -> tuple[Tensor, State]:
    """Causal linear attention one token after the other, as a recurrent network with the state as its memory.

    Args:
        query: Queries, (..., tokens, dim).
        key: Keys, (..., tokens, dim).
        value: Values, (..., tokens, value dim).
        feature_map: Applied to queries and keys.
        normalize: Whether each output is divided by the sum of its weights.
        state: The state before the first token; None is empty.

    Returns:
        The outputs, (..., tokens, value dim), and the state after the last token.

    >>> x = torch.randn(2, 5, 8)
    >>> torch.allclose(recurrent(x, x, x)[0], parallel(x, x, x)[0], atol=1e-5)
    True
    """
    features = _features(query, key, value, feature_map)
    return scan(
        _update_token,
        features,
        initial_state(*features[1:], normalize=normalize, state=state),
        chunk_size=1,
        dtype=value.dtype,
    )


def step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: FeatureMap = elu_plus_one,
    normalize: bool = True,
    state: State | None = None,
) -> tuple[Tensor, State]:
    """Process one token, (..., heads, dim) without positions, and return its output and the next state.

    Args:
        query: The query of the token.
        key: Its key.
        value: Its value, (..., heads, value dim).
        feature_map: Applied to query and key.
        normalize: Whether the output is divided by the sum of its weights.
        state: The state before the token; None is empty.

    Returns:
        The output, (..., heads, value dim), and the state after the token.

    >>> token = torch.randn(2, 8)
    >>> output, state = step(token, token, token)
    >>> output, state = step(token, token, token, state=state)
    >>> output.shape
    torch.Size([2, 8])
    """
    features = _features(query.unsqueeze(-2), key.unsqueeze(-2), value.unsqueeze(-2), feature_map)
    output, state = _update_token(*features, initial_state(*features[1:], normalize=normalize, state=state))
    return output.squeeze(-2).to(value.dtype), state


def bidirectional(
    query: Tensor, key: Tensor, value: Tensor, *, feature_map: FeatureMap = elu_plus_one, normalize: bool = True
) -> Tensor:
    """Compute linear attention without a mask, in O(n): every query attends to every key, and their numbers may differ.

    Args:
        query: Queries, (..., queries, dim).
        key: Keys, (..., keys, dim).
        value: Values, (..., keys, value dim).
        feature_map: Applied to queries and keys.
        normalize: Whether each output is divided by the sum of its weights.

    Returns:
        The outputs, (..., queries, value dim).

    >>> bidirectional(torch.randn(3, 8), torch.randn(100, 8), torch.randn(100, 4)).shape
    torch.Size([3, 4])
    """
    features = _features(query, key, value, feature_map, same_length=False)
    state = update_state(features[1], features[2], initial_state(*features[1:], normalize=normalize, state=None))
    return _read(features[0], state).to(value.dtype)


def update_state(key: Tensor, value: Tensor, state: State) -> State:
    """Add key features (..., heads, positions, features) and value (..., heads, positions, value dim) to the state."""
    matrix = state.matrix + value.mT @ key
    return State(matrix, None if state.normaliser is None else state.normaliser + key.sum(-2))


def scan(
    update: Update, inputs: tuple[Tensor, ...], state: State, *, chunk_size: int, dtype: torch.dtype
) -> tuple[Tensor, State]:
    """Run `update(*inputs, state)` over chunks of positions; the output has the shape of inputs[2], the value."""
    value, length = inputs[2], inputs[2].shape[-2]
    # With gradients, each chunk is its own tensor: writing into one tensor would cost a copy of all of it per chunk in
    # the backward. Without gradients, the output is allocated once.
    tensors = (*inputs, *(part for part in state if part is not None))
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    chunks: list[Tensor] = []
    output = value.new_empty((0,) if needs_grad else value.shape, dtype=dtype)
    for start in range(0, length, chunk_size):
        size = min(chunk_size, length - start)
        chunk, state = update(*(tensor.narrow(-2, start, size) for tensor in inputs), state)
        if needs_grad:
            chunks.append(chunk.to(dtype))
        else:
            output.narrow(-2, start, size).copy_(chunk)
    return (torch.cat(chunks, dim=-2) if chunks else output.view(value.shape)), state


def _update_chunk(query: Tensor, key: Tensor, value: Tensor, state: State) -> tuple[Tensor, State]:
    """Process a chunk of features: attention within the chunk, and to the state before it."""
    scores = (query @ key.mT).tril()
    output = scores @ value + query @ state.matrix.mT
    if state.normaliser is not None:
        output = _divide(output, scores.sum(-1, keepdim=True) + query @ state.normaliser.unsqueeze(-1))
    return output, update_state(key, value, state)


def _update_token(query: Tensor, key: Tensor, value: Tensor, state: State) -> tuple[Tensor, State]:
    """Process the features (..., heads, 1, features) of one token: add it to the state, then read."""
    # The outer product as one fused multiply-add, because the time of a token is the number of operations.
    matrix = torch.addcmul(state.matrix, value.mT, key)
    state = State(matrix, None if state.normaliser is None else state.normaliser + key.squeeze(-2))
    return _read(query, state), state


def _read(query: Tensor, state: State) -> Tensor:
    output = query @ state.matrix.mT
    if state.normaliser is None:
        return output
    return _divide(output, query @ state.normaliser.unsqueeze(-1))


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    # The denominator is replaced before dividing, not the quotient after: 0 * inf in the gradient would be NaN.
    empty = denominator == 0
    return (numerator / denominator.masked_fill(empty, 1)).masked_fill(empty, 0)


def _features(
    query: Tensor, key: Tensor, value: Tensor, feature_map: FeatureMap, *, same_length: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Check shapes, cast half precision to float32, and map queries and keys."""
    check_shapes(query, key, value, same_length=same_length)
    dtype = compute_dtype(value)
    return feature_map(query.to(dtype)), feature_map(key.to(dtype)), value.to(dtype)


def check_shapes(query: Tensor, key: Tensor, value: Tensor, *, same_length: bool = True) -> None:
    """Raise ShapeError unless query, key and value fit together."""
    fit = query.ndim >= 2 and query.shape[:-2] == key.shape[:-2] and query.shape[-1] == key.shape[-1]
    fit = fit and key.shape[:-1] == value.shape[:-1] and (not same_length or query.shape[-2] == key.shape[-2])
    if not fit:
        raise ShapeError(
            "linear attention: expected query and key (..., heads, positions, dim) and value (..., heads, positions, "
            f"value dim) with the same heads{' and positions' if same_length else ''}, got query {tuple(query.shape)}, "
            f"key {tuple(key.shape)}, value {tuple(value.shape)}; repeat key and value heads that are shared"
        )


def initial_state(key: Tensor, value: Tensor, *, normalize: bool, state: State | None) -> State:
    """Return the state to continue from: zeros, or the caller's if it fits key features and values."""
    shape = (*value.shape[:-2], value.shape[-1], key.shape[-1])
    if state is None:
        return State(value.new_zeros(shape), key.new_zeros((*shape[:-2], shape[-1])) if normalize else None)
    if state.matrix.shape != shape:
        raise ShapeError(
            f"linear attention: expected state.matrix (..., heads, value dim, features) = {tuple(shape)}, got "
            f"{tuple(state.matrix.shape)}; use the feature map and the batch that it was made with"
        )
    if normalize != (state.normaliser is not None):
        made = state.normaliser is not None
        raise ShapeError(f"linear attention: normalize={normalize}, but the state was made with normalize={made}")
    return state


def compute_dtype(value: Tensor) -> torch.dtype:
    """Return the dtype of sums over many tokens: at least float32."""
    return torch.promote_types(value.dtype, torch.float32)
