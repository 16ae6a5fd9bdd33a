"""`attend`, the one operation, and `explain`, which prints what it would do.

Tensors are (..., head, position, dim). Query head h reads key head h // group. A row with no key gives output 0,
gradient 0 and lse -inf. lse is the natural logarithm of the row's normaliser, in fp32 (fp64 for fp64), and
differentiable.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from attnscope.attention.algebra import Mask
from attnscope.attention.kernels import is_transformed
from attnscope.attention.masks import Full
from attnscope.attention.plan import Plan, make_plan
from attnscope.attention.rule import Signature, in_autocast_dtype, in_four, make_rule, sign
from attnscope.attention.scores import Score
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
    score_mod: Score | None = ...,
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
    score_mod: Score | None = ...,
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
    score_mod: Score | None = None,
    dropout: float = 0.0,
    backend: Backend = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale * query @ key^T, over the keys the mask allows) @ value, without building the matrix.

    query (..., heads, queries, dim), key (..., key heads, keys, dim), value (..., key heads, keys, value dim) give
    (..., heads, queries, value dim), and with `return_lse` also (..., heads, queries). Scale is 1/sqrt(dim) by default,
    and no mask means `Full()`. Inside torch.autocast the tensors are cast to its dtype, as torch's own call does.
    Inside transforms of torch.func, backend="auto" is the dense reference.

    >>> import torch
    >>> from attnscope import Causal, attend
    >>> query = key = value = torch.eye(3)
    >>> attend(query, key, value, mask=Causal(), scale=1.0)[0]
    tensor([1., 0., 0.])
    """
    if has_torch_function_variadic(query, key, value):  # what watches or replaces torch's functions sees this one, too
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
    query, key, value = in_autocast_dtype(query, key, value)
    signature = sign(query, key, value)
    leading = None if query.dim() == 4 else query.shape[:-2]
    query, key, value = in_four(query), in_four(key), in_four(value)
    mask = Full() if mask is None else mask
    if not torch.compiler.is_compiling() and is_transformed():
        backend = _transformable(backend)
    if torch.compiler.is_compiling() and isinstance(mask, Mask) and not mask.static:
        asked = (signature, mask, scale, score_mod, dropout, backend)
        output, lse = _uncompiled(asked, query, key, value)
    else:
        output, lse = _plan(signature, mask, scale, score_mod, dropout, backend).execute(query, key, value)
    if leading is not None:
        output, lse = output.reshape(*leading, *output.shape[2:]), lse.reshape(*leading, lse.shape[-1])
    return (output, lse) if return_lse else output


def _transformable(backend: Backend) -> Backend:
    """The backend inside a transform of torch.func; the others have no rules for it."""
    if backend not in ("auto", "reference"):
        raise UnsupportedError(
            f"attend: backend={backend!r} does not support transforms of torch.func (grad, vmap, jvp); use "
            "backend='reference', which builds the weights, or torch.autograd"
        )
    return "reference"


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    score_mod: Score | None = None,
    dropout: float = 0.0,
    backend: Backend = "auto",
    return_lse: bool = False,  # noqa: ARG001 - taken because attend takes it; every engine has the lse at no cost
) -> Plan:
    """The plan that `attend` would execute for the same arguments; print it."""
    return _plan(
        sign(*in_autocast_dtype(query, key, value)),
        Full() if mask is None else mask,
        scale,
        score_mod,
        dropout,
        backend,
    )


def _plan(
    signature: Signature, mask: Mask, scale: float | None, score_mod: Score | None, dropout: float, backend: str
) -> Plan:
    """The plan for these arguments, kept where none of them holds tensors."""
    if torch.compiler.is_compiling():
        # torch.compile keeps plans itself, in the code it makes for one set of sizes. It may want to make code for any
        # size, but a plan is a list of rectangles, and lists of unknown rectangles take it for ever.
        query, key, value = (torch.Size([int(size) for size in shape]) for shape in signature[:3])
        signature = signature._replace(query=query, key=key, value=value)
        return _new_plan(signature, mask, scale, score_mod, dropout, backend)
    keep = score_mod is None and isinstance(mask, Mask) and mask.static
    return (_kept_plan if keep else _new_plan)(signature, mask, scale, score_mod, dropout, backend)


def _uncompiled(asked: tuple[Any, ...], query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and lse, outside of compiled code: a mask that holds tensors is other rectangles in every batch, and code
    for each of them takes longer to make than it will ever run.
    """
    run = torch.compiler.disable(_plan_and_execute)
    return run(asked, query, key, value)  # pyright: ignore[reportCallIssue] - the stub takes no arguments


# What torch.compiler.disable marks functions with; as a decorator it would load the compiler with every import of ours.
_uncompiled._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]


def _plan_and_execute(asked: tuple[Any, ...], query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return _new_plan(*asked).execute(query, key, value)


def _new_plan(
    signature: Signature, mask: Mask, scale: float | None, score_mod: Score | None, dropout: float, backend: str
) -> Plan:
    return make_plan(make_rule(signature, mask=mask, scale=scale, score_mod=score_mod, dropout=dropout), backend)


_kept_plan = lru_cache(maxsize=256)(_new_plan)
