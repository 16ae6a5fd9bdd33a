"""What attention is, written a second time and without the library, and the rules by which an backend is judged.

`golden` is dense fp64 code over a boolean matrix that the cases spell out cell by cell in plain Python, so that a
mistake in a mask object cannot hide by being made on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention import Mask, ScoreMod, attend
from attnscope.attention.operation import Backend

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
    formula: Callable[[Tensor, dict[str, Tensor]], Tensor] | None = None
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
    group = shape.heads // shape.key_heads
    key, value = (leaves[name].repeat_interleave(group, dim=1) for name in ("key", "value"))
    scores = leaves["query"] @ key.mT / math.sqrt(shape.dim)
    sinks = leaves.get("sinks")
    if case.formula is not None:
        scores = case.formula(scores, leaves)
    mask = allowed(case, shape)
    empty = ~mask.any(-1, keepdim=True)
    scores = scores.masked_fill(~mask, -math.inf).masked_fill(empty, 0.0)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1).masked_fill(empty, 0.0)[..., : shape.keys]
    lse = scores.logsumexp(-1).masked_fill(empty[..., 0], 0.0)
    output = weights @ value
    lse_gradient = inputs.lse_gradient.to(lse)
    ((output * inputs.output_gradient.to(output)).sum() + (lse * lse_gradient).sum()).backward()
    return _results(output, lse.masked_fill(empty[..., 0], -math.inf), leaves)


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
    empty = lse == -math.inf
    finite = lse.masked_fill(empty, 0.0) * inputs.lse_gradient.to(lse)
    ((output * inputs.output_gradient).sum().to(lse.dtype) + finite.sum()).backward()
    return _results(output, lse, leaves)


def _results(output: Tensor, lse: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    results = {"output": output.detach(), "lse": lse.detach()}
    for name, leaf in leaves.items():
        results[f"gradient of {name}"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return {name: tensor.double() for name, tensor in results.items()}


def tier_a(got: dict[str, Tensor], plain32: dict[str, Tensor], truth: dict[str, Tensor]) -> list[str]:
    """fp32 against fp64: at most 4x the error of dense fp32 code, plus four roundings. Returns what breaks the rule.

    Output and lse are also judged row by row, by the size of the row: a wrong row of small numbers is not hidden by
    large numbers in another row.
    """
    rounding = 4 * torch.finfo(torch.float32).eps
    complaints = fp32_complaints(got, plain32, truth)
    # Weights are exp(score - lse), so that an absolute error of lse is a relative error of all weights of its row.
    lse = 1 + _finite(truth["lse"]).abs()
    scales = {"lse": lse, "output": lse * _finite(truth["output"]).abs().amax(-1)}
    for name, scale in scales.items():
        error, plain = (_error(one[name], truth[name]) for one in (got, plain32))
        error, plain = (one.amax(-1) if name == "output" else one for one in (error, plain))
        wrong = ~(error <= 4 * (plain + rounding * scale))
        if wrong.any():
            complaints.append(
                f"{name}: {int(wrong.sum())} rows are wrong beside their size, by up to {error[wrong].max():.3g}"
            )
    return complaints


def fp32_complaints(got: dict[str, Tensor], plain32: dict[str, Tensor], truth: dict[str, Tensor]) -> list[str]:
    """What has an error above 4x the largest error of dense fp32 code, plus four roundings."""
    rounding = 4 * torch.finfo(torch.float32).eps
    return _complaints(
        got, truth, lambda name, right: 4 * _error(plain32[name], right).max() + rounding * _finite(right).abs().max()
    )


def tier_b(got: dict[str, Tensor], plain: dict[str, Tensor], truth: dict[str, Tensor], dtype: torch.dtype) -> list[str]:
    """bf16 and fp16: at most 2x the largest, and no more than the mean, error of dense code in that dtype."""

    def largest(name: str, right: Tensor) -> Tensor:
        low = _finite(right).to(dtype)
        rounding = 2 * ((low + 0.3 - 0.3) - low).abs().max().double()
        return 2 * _error(plain[name], right).max() + rounding

    complaints = _complaints(got, truth, largest)
    for name, right in truth.items():
        mean, bound = _error(got[name], right).mean(), _error(plain[name], right).mean()
        # Where dense code makes no error at all, a result is still rounded once to its dtype.
        bound = torch.maximum(bound, torch.finfo(torch.float32).eps * _finite(right).abs().mean())
        if not mean <= bound:
            complaints.append(f"{name}: mean error {mean:.3g} > {bound:.3g}")
    return complaints


def _complaints(got, truth, bound_for) -> list[str]:
    complaints = []
    for name, right in truth.items():
        if right.numel() == 0:
            continue
        if not torch.equal(got[name].isinf(), right.isinf()) or got[name].isnan().any():
            complaints.append(f"{name}: infinite or NaN elsewhere than it should be")
            continue
        error, bound = _error(got[name], right).max(), bound_for(name, right)
        if not error <= bound:
            complaints.append(f"{name}: error {error:.3g} > {bound:.3g}")
    return complaints


def _finite(tensor: Tensor) -> Tensor:
    return tensor.masked_fill(tensor.isinf(), 0.0)


def _error(got: Tensor, right: Tensor) -> Tensor:
    return (_finite(got) - _finite(right)).abs()
