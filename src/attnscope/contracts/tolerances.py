"""How large a numerical error may be, for tests and for `attnscope doctor --verify`.

The truth is dense code in fp64. What dense code in the dtype of the inputs gets wrong is the yardstick: an
implementation may be a few times worse, and no more. In: results by name, on the CPU in fp64. Out: one error and one
bound per result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

Results = Mapping[str, Tensor]

FP32_ROUNDING = 4 * torch.finfo(torch.float32).eps
FP64_BOUND = 1e-11


class Deviation(NamedTuple):
    """The error of one result, and how large it may be."""

    name: str
    error: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the error is within its bound; False for NaN."""
        return self.error <= self.bound

    @property
    def share(self) -> float:
        """The error as a share of its bound; infinite for NaN and misplaced infinities."""
        if math.isnan(self.error) or math.isinf(self.error):
            return math.inf
        return self.error / self.bound if self.bound else (math.inf if self.error else 0.0)

    def __str__(self) -> str:
        if math.isinf(self.error):
            return f"{self.name}: infinite or NaN in wrong places"
        return f"{self.name}: error {self.error:.3g}, expected at most {self.bound:.3g}"


def find_broken(deviations: Iterable[Deviation]) -> list[str]:
    """Describe the deviations that exceed their bound.

    >>> find_broken([Deviation("lse", 2e-7, 1e-6), Deviation("output", 1e-3, 1e-6)])
    ['output: error 0.001, expected at most 1e-06']
    """
    return [str(deviation) for deviation in deviations if not deviation.holds]


def compare_attention(got: Results, plain: Results, truth: Results, dtype: torch.dtype) -> list[Deviation]:
    """Compare results of attention by the rule for their dtype.

    Args:
        got: The results, with "output" and "lse".
        plain: Those of dense code in that dtype.
        truth: Those of dense code in fp64.
        dtype: The dtype of query, key and value.
    """
    if dtype == torch.float64:
        return _compare(got, truth, dict.fromkeys(truth, FP64_BOUND))
    return tier_a(got, plain, truth) if dtype == torch.float32 else tier_b(got, plain, truth, dtype)


def tier_a(got: Results, plain32: Results, truth: Results) -> list[Deviation]:
    """fp32 against fp64: at most 4x the error of dense fp32 code, plus four roundings.

    Output and lse are also judged row by row, by the size of the row: a wrong row of small numbers is not hidden by
    large numbers in another row.
    """
    deviations = compare_fp32(got, plain32, truth)
    # Weights are exp(score - lse), so that an absolute error of lse is a relative error of all weights of its row.
    lse = 1 + _finite(truth["lse"]).abs()
    scales = {"lse": lse, "output": lse * _finite(truth["output"]).abs().amax(-1)}
    for name, scale in scales.items():
        error, plain = (_error(one[name], truth[name]) for one in (got, plain32))
        error, plain = (one.amax(-1) if name == "output" else one for one in (error, plain))
        bound = 4 * (plain + FP32_ROUNDING * scale)
        if error.numel():
            worst = int((error / bound.clamp(min=torch.finfo(torch.float64).tiny)).argmax())
            deviations.append(
                Deviation(f"a row of {name}", float(error.flatten()[worst]), float(bound.flatten()[worst]))
            )
    return deviations


def compare_fp32(
    got: Results, plain32: Results, truth: Results, allowances: Mapping[str, float] | None = None
) -> list[Deviation]:
    """Compare results with 4x the largest error of dense fp32 code, plus four roundings, plus an allowance by name."""
    bounds = dict(allowances or {})
    for name, right in truth.items():
        if right.numel():
            plain, size = _error(plain32[name], right).max(), _finite(right).abs().max()
            bounds[name] = bounds.get(name, 0.0) + float(4 * plain + FP32_ROUNDING * size)
    return _compare(got, truth, bounds)


def tier_b(got: Results, plain: Results, truth: Results, dtype: torch.dtype) -> list[Deviation]:
    """bf16 and fp16: at most 2x the largest, and no more than the mean, error of dense code in that dtype."""
    bounds, means = {}, []
    for name, right in truth.items():
        if right.numel():
            low, dense = _finite(right).to(dtype), _error(plain[name], right)
            rounding = 2 * ((low + 0.3 - 0.3) - low).abs().max().double()
            bounds[name] = float(2 * dense.max() + rounding)
            # Where dense code makes no error at all, a result is still rounded once to its dtype.
            once = torch.finfo(torch.float32).eps * _finite(right).abs().mean()
            mean, bound = _error(got[name], right).mean(), torch.maximum(dense.mean(), once)
            means.append(Deviation(f"mean of {name}", float(mean), float(bound)))
    return [*_compare(got, truth, bounds), *means]


def require_equal(got: Results, right: Results) -> list[Deviation]:
    """Compare results that must be the same bits."""
    return _compare(got, right, dict.fromkeys(right, 0.0))


def entropy_allowance(query: Tensor, key: Tensor, lse: Tensor, scale: float) -> float:
    """The rounding error of the entropy as lse minus the mean score, two numbers that may be larger than it."""
    norm = float(query.norm(dim=-1).max() * key.norm(dim=-1).max())
    return FP32_ROUNDING * (float(_finite(lse).abs().max()) + norm * scale)


def _compare(got: Results, truth: Results, bounds: Mapping[str, float]) -> list[Deviation]:
    deviations = []
    for name, right in truth.items():
        if right.numel() == 0:
            continue
        is_misplaced = not torch.equal(got[name].isinf(), right.isinf()) or bool(got[name].isnan().any())
        error = math.inf if is_misplaced else float(_error(got[name], right).max())
        deviations.append(Deviation(name, error, bounds[name]))
    return deviations


def _finite(tensor: Tensor) -> Tensor:
    return tensor.masked_fill(tensor.isinf(), 0.0)


def _error(got: Tensor, right: Tensor) -> Tensor:
    return (_finite(got) - _finite(right)).abs()
