"""What attention is, written a second time and without the library's backends, masks and scores.

`golden` is dense fp64 code over a boolean matrix that the cases spell out cell by cell in plain Python, so that a
mistake in a mask object cannot hide by being made on both sides. It is judged by the rules of
`attnscope.contracts.tolerances`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention import Mask, ScoreMod, attend
from attnscope.attention.operation import Backend
from attnscope.contracts import tolerances
from attnscope.contracts.dense import Formula, dense_attention, with_gradients
from attnscope.contracts.tolerances import find_broken

Sees = Callable[[int, int, int], bool]  # batch row, query, key


class Shape(NamedTuple):
    """Sizes of one attention."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int


@dataclass(frozen=True)
class Case:
    """A mask (and a score) as the library's objects and as plain formulas."""

    name: str
    mask: Callable[[Shape], Mask]
    sees: Callable[[Shape], Sees]
    score: Callable[[dict[str, Tensor]], ScoreMod] | None = None
    formula: Formula | None = None
    parameters: dict[str, Callable[[Shape], Tensor]] = field(default_factory=dict)


class Inputs(NamedTuple):
    """Leaves and the gradients that arrive from above."""

    leaves: dict[str, Tensor]
    output_gradient: Tensor
    lse_gradient: Tensor


def allowed(case: Case, shape: Shape) -> Tensor:
    """The case's mask, cell by cell."""
    sees = case.sees(shape)
    return torch.tensor(
        [[[[sees(b, i, j) for j in range(shape.keys)] for i in range(shape.queries)]] for b in range(shape.batch)]
    ).reshape(shape.batch, 1, shape.queries, shape.keys)


def make_inputs(case: Case, shape: Shape, dtype: torch.dtype, *, growing: bool = False, seed: int = 0) -> Inputs:
    """Random inputs; `growing` keys rise in norm along the sequence, which forces an online softmax to rescale.

    They rise to scores of about 15. An backend that stores lse computes its weights again as exp(s - lse), with a
    relative error of eps * |lse| that dense code does not have: far larger scores would judge fp32 and not the backend.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    leaves = {
        "query": normal(shape.batch, shape.heads, shape.queries, shape.dim),
        "key": normal(shape.batch, shape.key_heads, shape.keys, shape.dim),
        "value": normal(shape.batch, shape.key_heads, shape.keys, shape.value_dim),
    }
    if growing:
        leaves["key"] *= torch.linspace(0.1, 4.0, max(shape.keys, 1))[: shape.keys, None]
    leaves |= {name: make(shape) for name, make in case.parameters.items()}
    leaves = {name: leaf.to(dtype).requires_grad_() for name, leaf in leaves.items()}
    rows = (shape.batch, shape.heads, shape.queries)
    return Inputs(leaves, normal(*rows, shape.value_dim).to(dtype), normal(*rows))


def golden(case: Case, shape: Shape, inputs: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
    """Output, lse and all gradients by dense code that rounds every intermediate result to `dtype`."""
    leaves = {name: leaf.detach().to(dtype).requires_grad_() for name, leaf in inputs.leaves.items()}
    found = dense_attention(leaves, allowed(case, shape), case.formula)
    return with_gradients(found.output, found.lse, leaves, inputs.output_gradient, inputs.lse_gradient)


def measured(case: Case, shape: Shape, inputs: Inputs, backend: Backend) -> dict[str, Tensor]:
    """The same by the library."""
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in inputs.leaves.items()}
    score = None if case.score is None else case.score(leaves)
    output, lse = attend(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        mask=case.mask(shape),
        score_mod=score,
        backend=backend,
        return_lse=True,
    )
    return with_gradients(output, lse, leaves, inputs.output_gradient, inputs.lse_gradient)


def tier_a(got: dict[str, Tensor], plain32: dict[str, Tensor], truth: dict[str, Tensor]) -> list[str]:
    """What breaks the rule for fp32."""
    return find_broken(tolerances.tier_a(got, plain32, truth))


def tier_b(got: dict[str, Tensor], plain: dict[str, Tensor], truth: dict[str, Tensor], dtype: torch.dtype) -> list[str]:
    """What breaks the rule for bf16 and fp16."""
    return find_broken(tolerances.tier_b(got, plain, truth, dtype))
