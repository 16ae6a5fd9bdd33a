"""`attend`, the attention operation, and `explain`, which shows how it would be computed.

Tensors are (..., heads, positions, dim). Query head h reads key head h // group. A row without keys has output 0,
gradient 0 and lse -inf. lse is the natural logarithm of a row's normaliser, in fp32 (fp64 for fp64), and
differentiable.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from attnscope.attention.algebra import Mask
from attnscope.attention.kernels import is_functorch_active
from attnscope.attention.masks import Full
from attnscope.attention.plan import Plan, make_plan
from attnscope.attention.scores import ScoreMod
from attnscope.attention.spec import Signature, make_spec, signature_of, to_4d, to_autocast_dtype
from attnscope.errors import UnsupportedError

Backend = Literal["auto", "fused", "streaming", "reference"]


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = ...,
    scale: float | None = ...,
    score_mod: ScoreMod | None = ...,
    dropout: float = ...,
    backend: Backend = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...
@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = ...,
    scale: float | None = ...,
    score_mod: ScoreMod | None = ...,
    dropout: float = ...,
    backend: Backend = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    score_mod: ScoreMod | None = None,
    dropout: float = 0.0,
    backend: Backend = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute softmax(scale * query @ key^T) @ value over the keys that the mask allows, in O(n) memory.

    Inside torch.autocast the tensors are cast to its dtype, as F.scaled_dot_product_attention does. Inside transforms
    of torch.func (grad, vmap, jvp), backend="auto" is the dense reference.

    Args:
        query: (..., heads, queries, dim).
        key: (..., key heads, keys, dim). Fewer key heads than heads are grouped-query attention.
        value: (..., key heads, keys, value dim).
        mask: Which query attends to which key; None is `Full()`.
        scale: The factor of the scores; None is 1 / sqrt(dim).
        score_mod: Changes the scores before the mask and the softmax, for example `Softcap(30.0) + ALiBi(8)`.
        dropout: The probability with which an attention weight is dropped.
        backend: "auto" takes "fused" where it is exact and "streaming" elsewhere. "reference" builds all weights.
        return_lse: Whether to return the log-sum-exp of each row of scores, too.

    Returns:
        The output (..., heads, queries, value dim); with `return_lse` also the lse (..., heads, queries).

    Raises:
        ShapeError: Shapes, dtypes or devices do not fit together.
        UnsupportedError: The requested backend cannot compute this call exactly.

    >>> import torch
    >>> from attnscope import Causal, attend
    >>> query = key = value = torch.eye(3)
    >>> attend(query, key, value, mask=Causal(), scale=1.0)[0]
    tensor([1., 0., 0.])
    """
    if has_torch_function_variadic(query, key, value):  # so that modes which intercept torch's functions get this one
        return handle_torch_function(
            attend,
            (query, key, value),
            query,
            key,
            value,
            mask=mask,
            scale=scale,
            score_mod=score_mod,
            dropout=dropout,
            backend=backend,
            return_lse=return_lse,  # pyright: ignore[reportArgumentType] - one of two overloads
        )
    query, key, value = to_autocast_dtype(query, key, value)
    signature = signature_of(query, key, value)
    leading = None if query.dim() == 4 else query.shape[:-2]
    query, key, value = to_4d(query), to_4d(key), to_4d(value)
    mask = Full() if mask is None else mask
    if not torch.compiler.is_compiling() and is_functorch_active():
        backend = _functorch_backend(backend)
    if torch.compiler.is_compiling() and isinstance(mask, Mask) and not mask.is_static:
        call = (signature, mask, scale, score_mod, dropout, backend)
        output, lse = _execute_uncompiled(call, query, key, value)
    else:
        output, lse = _find_plan(signature, mask, scale, score_mod, dropout, backend).execute(query, key, value)
    if leading is not None:
        output, lse = output.reshape(*leading, *output.shape[2:]), lse.reshape(*leading, lse.shape[-1])
    return (output, lse) if return_lse else output


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    score_mod: ScoreMod | None = None,
    dropout: float = 0.0,
    backend: Backend = "auto",
    return_lse: bool = False,  # noqa: ARG001 - taken because attend takes it; every backend has the lse at no cost
) -> Plan:
    """Return the plan that `attend` would execute for the same arguments; print it.

    Args:
        query: (..., heads, queries, dim).
        key: (..., key heads, keys, dim).
        value: (..., key heads, keys, value dim).
        mask: Which query attends to which key; None is `Full()`.
        scale: The factor of the scores; None is 1 / sqrt(dim).
        score_mod: Changes the scores before the mask and the softmax.
        dropout: The probability with which an attention weight is dropped.
        backend: As for `attend`.
        return_lse: Changes nothing, because every backend has the lse at no cost.

    Returns:
        The backend, its memory and operations, and the reason for it.

    >>> import torch
    >>> from attnscope import Causal
    >>> from attnscope.attention import explain
    >>> query = torch.randn(1, 2, 100, 16)
    >>> explain(query, query, query, mask=Causal()).backend
    'fused'
    """
    signature = signature_of(*to_autocast_dtype(query, key, value))
    return _find_plan(signature, Full() if mask is None else mask, scale, score_mod, dropout, backend)


def _functorch_backend(backend: Backend) -> Backend:
    """Return the backend inside a transform of torch.func; only the reference supports them."""
    if backend not in ("auto", "reference"):
        raise UnsupportedError(
            f"attend: backend={backend!r} does not support transforms of torch.func (grad, vmap, jvp); use "
            "backend='reference', which builds the weights, or torch.autograd"
        )
    return "reference"


def _find_plan(
    signature: Signature, mask: Mask, scale: float | None, score_mod: ScoreMod | None, dropout: float, backend: str
) -> Plan:
    """Return the plan for these arguments, cached if none of them holds tensors."""
    if torch.compiler.is_compiling():
        # torch.compile caches plans itself, in the code that it generates for one set of sizes. It may try to generate
        # code for any size, but a plan is a list of rectangles, and tracing lists of unknown length does not end.
        query, key, value = (torch.Size([int(size) for size in shape]) for shape in signature[:3])
        signature = signature._replace(query=query, key=key, value=value)
    elif score_mod is None and isinstance(mask, Mask) and mask.is_static:
        return _cached_plan(signature, mask, scale, score_mod, dropout, backend)
    return _new_plan(signature, mask, scale, score_mod, dropout, backend)


def _new_plan(
    signature: Signature, mask: Mask, scale: float | None, score_mod: ScoreMod | None, dropout: float, backend: str
) -> Plan:
    return make_plan(make_spec(signature, mask=mask, scale=scale, score_mod=score_mod, dropout=dropout), backend)


_cached_plan = lru_cache(maxsize=256)(_new_plan)


def _execute_uncompiled(call: tuple[Any, ...], query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and lse, computed outside of compiled code.

    A mask that holds tensors has other rectangles in every batch. Generating code for each takes longer than it runs.
    """
    run = torch.compiler.disable(lambda: _new_plan(*call).execute(query, key, value))
    return run()  # pyright: ignore[reportCallIssue] - the stub takes no arguments


# What torch.compiler.disable marks functions with; as a decorator it would load the compiler with every import of ours.
_execute_uncompiled._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]
