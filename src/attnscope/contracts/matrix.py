"""Contracts of AttentionMatrix: each statistic against the dense formula in fp64.

Statistics of 16-bit queries and keys are computed in fp32, so all are judged by the rule for fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from attnscope.contracts.cases import SCORES, Case, covering_cases
from attnscope.contracts.contract import Check, Contract
from attnscope.contracts.dense import DenseAttention, to_double
from attnscope.contracts.tolerances import Deviation, compare_fp32, entropy_allowance
from attnscope.matrix import AttentionMatrix, reference
from attnscope.matrix.pooling import even_edges

DTYPES = (torch.float32, torch.bfloat16)
BINS = 5
REDUCTIONS = ("density", "mass", "max")
COLUMNS = 3  # of the values that weights are multiplied by

Statistic = Callable[[AttentionMatrix], dict[str, Tensor]]
DenseStatistic = Callable[[DenseAttention], dict[str, Tensor]]


def _pool(matrix: AttentionMatrix) -> dict[str, Tensor]:
    rows, columns = (min(BINS, size) for size in matrix.shape[-2:])
    return {name: matrix.pool(rows, columns, name) for name in REDUCTIONS}


def _dense_pool(dense: DenseAttention) -> dict[str, Tensor]:
    rows, columns = (even_edges(size, min(BINS, size)) for size in dense.weights.shape[-2:])
    return {
        name: reference.pool(dense.weights, dense.allowed, rows, columns, name) for name in ("density", "mass", "max")
    }


def _tile_slices(queries: int, keys: int) -> tuple[slice, slice]:
    return slice(queries // 3, queries), slice(keys // 4, keys - 2)


def _tile(matrix: AttentionMatrix) -> dict[str, Tensor]:
    rows, columns = _tile_slices(*matrix.shape[-2:])
    bins = matrix.bins([rows.start, rows.stop], [columns.start, columns.start + 7, columns.stop])
    return {"weights": matrix[..., rows, columns], "sums": bins.sums, "maxima": bins.max}


def _dense_tile(dense: DenseAttention) -> dict[str, Tensor]:
    rows, columns = _tile_slices(*dense.weights.shape[-2:])
    weights = dense.weights[..., rows, columns]
    parts = weights[..., :7], weights[..., 7:]
    return {
        "weights": weights,
        "sums": torch.stack([part.sum((-2, -1)) for part in parts], -1)[..., None, :],
        "maxima": torch.stack([part.amax((-2, -1)) for part in parts], -1)[..., None, :],
    }


def _values(num_tokens: int) -> Tensor:
    return torch.randn(num_tokens, COLUMNS, generator=torch.Generator().manual_seed(2))


def _products(matrix: AttentionMatrix) -> dict[str, Tensor]:
    rows, columns = (_values(size).to(matrix.device) for size in matrix.shape[-2:])
    return {"A @ F": matrix @ columns, "A.T @ G": matrix.T @ rows}


def _dense_products(dense: DenseAttention) -> dict[str, Tensor]:
    rows, columns = (_values(size).to(dense.weights) for size in dense.weights.shape[-2:])
    return {"A @ F": dense.weights @ columns, "A.T @ G": dense.weights.mT @ rows}


def _summary(matrix: AttentionMatrix) -> dict[str, Tensor]:
    found = matrix.summary()
    names = ("entropy", "effective_keys", "received", "mean_distance", "mean_abs_distance", "mass", "visible_keys")
    return {name: getattr(found, name) for name in names}


def _dense_summary(dense: DenseAttention) -> dict[str, Tensor]:
    weights = dense.weights
    return {
        "entropy": reference.entropy(weights),
        "effective_keys": reference.effective_keys(weights),
        "received": reference.received(weights),
        "mean_distance": reference.distance(weights)[0],
        "mean_abs_distance": reference.mean_abs_distance(weights),
        "mass": weights.sum(-1),
        "visible_keys": dense.allowed.sum(-1),
    }


STATISTICS: dict[str, tuple[Statistic, DenseStatistic]] = {
    "lse of a matrix": (lambda matrix: {"lse": matrix.lse}, lambda dense: {"lse": dense.lse}),
    "entropy": (
        lambda matrix: {"entropy": matrix.entropy()},
        lambda dense: {"entropy": reference.entropy(dense.weights)},
    ),
    "received attention": (
        lambda matrix: {"received": matrix.received()},
        lambda dense: {"received": reference.received(dense.weights)},
    ),
    "distance": (
        lambda matrix: dict(zip(("mean", "std"), matrix.distance(), strict=True)),
        lambda dense: dict(zip(("mean", "std"), reference.distance(dense.weights), strict=True)),
    ),
    "largest weight": (
        lambda matrix: {"max": matrix.max()},
        lambda dense: {"max": dense.weights.amax(-1)},
    ),
    "pooled matrix": (_pool, _dense_pool),
    "tile of a matrix": (_tile, _dense_tile),
    "products with values": (_products, _dense_products),
    "summary": (_summary, _dense_summary),
}


def checks(name: str, device: torch.device) -> Iterator[Check]:
    """Yield the checks of one statistic: each mask twice, with other scores, dtypes and sizes."""
    seen: dict[str, int] = {}
    for case in covering_cases(DTYPES):
        seen[case.mask] = seen.get(case.mask, 0) + 1
        if seen[case.mask] <= 2:
            yield Check(str(case), partial(compare, name, case, device))


def compare(name: str, case: Case, device: torch.device) -> list[Deviation]:
    """Compare a statistic of one attention with the dense formula."""
    compute, compute_dense = STATISTICS[name]
    leaves = case.make_leaves()
    moved = {leaf: tensor.to(device) for leaf, tensor in leaves.items()}
    score = SCORES[case.score].make(moved)
    got = compute(AttentionMatrix(moved["query"], moved["key"], mask=case.make_mask(), score_mod=score))
    exact = case.run_dense(to_double(leaves))
    plain = case.run_dense({leaf: tensor.float() for leaf, tensor in leaves.items()})
    allowance = entropy_allowance(leaves["query"].double(), leaves["key"].double(), exact.lse, case.scale)
    return compare_fp32(
        to_double(got),
        to_double(compute_dense(plain)),
        to_double(compute_dense(exact)),
        {"entropy": allowance} if name == "entropy" else {},
    )


CONTRACTS = tuple(Contract(name, partial(checks, name)) for name in STATISTICS)
