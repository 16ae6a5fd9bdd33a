"""Linear attention: exp(q.k) is replaced by phi(q).phi(k), so all that was read fits in one matrix, the fast weights.

In: queries and keys (..., head, position, key), values (..., head, position, value), a feature map phi, a `State` to
continue from. Out: (..., head, position, value) and the `State` after the last token.
Does not know: masks (it is causal; `whole` is not), positions, dropout, grouped heads. Sums are kept in float32, or
float64 for float64 inputs. The same operation has three forms:
  parallel   the obvious dense code, O(n^2) memory and time: the reference
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
    """All that linear attention remembers of what it has read, in a size that does not depend on how much that was."""

    matrix: Tensor
    """The sum of value outer phi(key) over the tokens read: (..., head, value, feature)."""
    normaliser: Tensor | None
    """The sum of phi(key): (..., head, feature), or None where outputs are not normalised."""


Update = Callable[..., tuple[Tensor, State]]


def elu_plus_one(x: Tensor) -> Tensor:
    """The positive feature map elu(x) + 1 (Katharopoulos et al. 2020, arXiv:2006.16236, equation 7).

    >>> elu_plus_one(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0.3679, 1.0000, 3.0000])
    """
    # elu(x) + 1 is exp(x) below 0; written so, it keeps its digits where elu(x) is nearly -1.
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def identity(x: Tensor) -> Tensor:
    """No feature map: with normalize=False this is the fast weight programmer of 1991 (arXiv:2102.11174, section 3).

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
    """Causal linear attention as one masked matrix of scores, O(n^2): the code that the other forms are compared with.

    A row whose normaliser is exactly 0 has nothing to average and gives 0.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> output, state = parallel(x, x, x, feature_map=identity, normalize=False)
    >>> output
    tensor([[1., 0.],
            [0., 1.],
            [3., 3.]])
    """
    features = _features(query, key, value, feature_map)
    output, state = _block(*features, state_for(*features[1:], normalize=normalize, state=state))
    return output.to(value.dtype), state


def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: FeatureMap = elu_plus_one,
    normalize: bool = True,
    state: State | None = None,
    chunk: int = 128,
) -> tuple[Tensor, State]:
    """Causal linear attention in O(n) memory: dense within each chunk of tokens, the state between them.

    >>> x = torch.randn(2, 1000, 8)
    >>> output, state = chunked(x, x, x)
    >>> output.shape, state.matrix.shape
    (torch.Size([2, 1000, 8]), torch.Size([2, 8, 8]))
    """
    if chunk < 1:
        raise ShapeError(f"chunk counts tokens and must be at least 1, but is {chunk}")
    features = _features(query, key, value, feature_map)
    return scan(
        _block, features, state_for(*features[1:], normalize=normalize, state=state), chunk=chunk, dtype=value.dtype
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

    >>> x = torch.randn(2, 5, 8)
    >>> torch.allclose(recurrent(x, x, x)[0], parallel(x, x, x)[0], atol=1e-5)
    True
    """
    features = _features(query, key, value, feature_map)
    return scan(
        _token, features, state_for(*features[1:], normalize=normalize, state=state), chunk=1, dtype=value.dtype
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
    """Read one token, (..., head, dim) without a position axis, and give its output and the next state.

    >>> token = torch.randn(2, 8)
    >>> output, state = step(token, token, token)
    >>> output, state = step(token, token, token, state=state)
    >>> output.shape
    torch.Size([2, 8])
    """
    features = _features(query.unsqueeze(-2), key.unsqueeze(-2), value.unsqueeze(-2), feature_map)
    output, state = _token(*features, state_for(*features[1:], normalize=normalize, state=state))
    return output.squeeze(-2).to(value.dtype), state


def whole(
    query: Tensor, key: Tensor, value: Tensor, *, feature_map: FeatureMap = elu_plus_one, normalize: bool = True
) -> Tensor:
    """Linear attention without a mask, O(n): every query reads every key, and there may be more of one than the other.

    >>> whole(torch.randn(3, 8), torch.randn(100, 8), torch.randn(100, 4)).shape
    torch.Size([3, 4])
    """
    features = _features(query, key, value, feature_map, same_length=False)
    state = write(features[1], features[2], state_for(*features[1:], normalize=normalize, state=None))
    return _read(features[0], state).to(value.dtype)


def write(key: Tensor, value: Tensor, state: State) -> State:
    """Add tokens to the state: key features (..., head, position, feature), values (..., head, position, value)."""
    matrix = state.matrix + value.mT @ key
    return State(matrix, None if state.normaliser is None else state.normaliser + key.sum(-2))


def scan(
    update: Update, inputs: tuple[Tensor, ...], state: State, *, chunk: int, dtype: torch.dtype
) -> tuple[Tensor, State]:
    """Run `update(*inputs, state)` over pieces of `chunk` positions; the output is shaped like inputs[2], the value."""
    value, length = inputs[2], inputs[2].shape[-2]
    # Autograd wants the pieces apart (going back, writing into one tensor costs a copy of all of it for each piece);
    # without gradients the output is made once, so nothing grows.
    involved = (*inputs, *(part for part in state if part is not None))
    tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in involved)
    pieces: list[Tensor] = []
    output = value.new_empty((0,) if tracked else value.shape, dtype=dtype)
    for start in range(0, length, chunk):
        size = min(chunk, length - start)
        piece, state = update(*(tensor.narrow(-2, start, size) for tensor in inputs), state)
        if tracked:
            pieces.append(piece.to(dtype))
        else:
            output.narrow(-2, start, size).copy_(piece)
    return (torch.cat(pieces, dim=-2) if pieces else output.view(value.shape)), state


def _block(query: Tensor, key: Tensor, value: Tensor, state: State) -> tuple[Tensor, State]:
    """Many tokens at once, on features: what they read of each other, and of the state before them."""
    scores = (query @ key.mT).tril()
    output = scores @ value + query @ state.matrix.mT
    if state.normaliser is not None:
        output = _divide(output, scores.sum(-1, keepdim=True) + query @ state.normaliser.unsqueeze(-1))
    return output, write(key, value, state)


def _token(query: Tensor, key: Tensor, value: Tensor, state: State) -> tuple[Tensor, State]:
    """One token, on features (..., head, 1, feature): write it, then read."""
    # The outer product as one fused multiply-add: a token costs few operations, and that is all its time.
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
    """Check shapes, widen half precision to float32, and map queries and keys."""
    require_fit(query, key, value, same_length=same_length)
    dtype = working_dtype(value)
    return feature_map(query.to(dtype)), feature_map(key.to(dtype)), value.to(dtype)


def require_fit(query: Tensor, key: Tensor, value: Tensor, *, same_length: bool = True) -> None:
    """Refuse queries, keys and values that do not belong together."""
    fit = query.ndim >= 2 and query.shape[:-2] == key.shape[:-2] and query.shape[-1] == key.shape[-1]
    fit = fit and key.shape[:-1] == value.shape[:-1] and (not same_length or query.shape[-2] == key.shape[-2])
    if not fit:
        raise ShapeError(
            "linear attention needs query and key (..., head, position, key) and value (..., head, position, value) "
            f"with the same heads{' and positions' if same_length else ''}, but got query {tuple(query.shape)}, "
            f"key {tuple(key.shape)}, value {tuple(value.shape)}; repeat the key and value heads if they are shared"
        )


def state_for(key: Tensor, value: Tensor, *, normalize: bool, state: State | None) -> State:
    """The state to continue from: zeros for key features and values, or the caller's if it fits them."""
    shape = (*value.shape[:-2], value.shape[-1], key.shape[-1])
    if state is None:
        return State(value.new_zeros(shape), key.new_zeros((*shape[:-2], shape[-1])) if normalize else None)
    if state.matrix.shape != shape:
        raise ShapeError(
            f"the state to continue from must be (..., head, value, feature) = {tuple(shape)}, but its matrix is "
            f"{tuple(state.matrix.shape)}; was it made with another feature map or batch?"
        )
    if normalize != (state.normaliser is not None):
        made = "without" if state.normaliser is None else "with"
        raise ShapeError(
            f"normalize={normalize} was asked, but the state was made {made} a normaliser: use one setting"
        )
    return state


def working_dtype(value: Tensor) -> torch.dtype:
    """Sums over many tokens need at least float32."""
    return torch.promote_types(value.dtype, torch.float32)
