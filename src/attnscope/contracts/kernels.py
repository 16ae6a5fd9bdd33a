"""Contracts of the Triton kernels, on CUDA and ROCm devices with triton: each result against dense fp64 code.

The kernels are checked as such, whether or not a backend uses them on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from attnscope.attention.intervals import Intervals, to_intervals
from attnscope.attention.spec import Signature, make_spec
from attnscope.attention.triton.reference import bins
from attnscope.attention.triton.score_terms import ScoreTerms, to_score_terms
from attnscope.contracts.cases import SCORES, Case, covering_cases
from attnscope.contracts.contract import Check, Contract
from attnscope.contracts.dense import DenseAttention, to_double
from attnscope.contracts.tolerances import Deviation, compare_fp32
from attnscope.matrix import reference
from attnscope.matrix.pooling import even_edges

if TYPE_CHECKING:
    from attnscope.attention.triton.configs import Config

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BINS = 3
COLUMNS = 19  # of the values that transposed weights are multiplied by


class KernelCase(NamedTuple):
    """A case in the form that the kernels take."""

    leaves: dict[str, Tensor]
    intervals: Intervals
    terms: ScoreTerms


def checks(device: torch.device) -> Iterator[Check]:
    """Yield a check for each attention that the kernels support, if they can run on the device."""
    if device.type == "cuda" and find_spec("triton") is not None:
        for case in covering_cases(DTYPES):
            if prepare(case, torch.device("cpu")) is not None:
                yield Check(str(case), partial(compare, case, device))


def prepare(case: Case, device: torch.device) -> KernelCase | None:
    """Return a case for the kernels; None if its mask is not one interval per query, or its scores have a bias."""
    leaves = {name: leaf.to(device) for name, leaf in case.make_leaves().items()}
    query, key = leaves["query"], leaves["key"]
    spec = make_spec(
        Signature(query.shape, key.shape, key.shape, query.dtype, device),
        mask=case.make_mask(),
        scale=None,
        score_mod=SCORES[case.score].make(leaves),
        dropout=0.0,
    )
    regions = case.make_mask().to_regions(case.sizes)
    intervals = None if regions is None else to_intervals(regions, case.sizes, device)
    terms = to_score_terms(spec)
    return None if intervals is None or terms is None else KernelCase(leaves, intervals, terms)


def compare(case: Case, device: torch.device, config: Config | None = None) -> list[Deviation]:
    """Compare all results of the kernels; `config` replaces the tile sizes of the device."""
    prepared = prepare(case, device)
    assert prepared is not None
    leaves = case.make_leaves()
    exact = case.run_dense(to_double(leaves))
    plain = case.run_dense({name: leaf.float() for name, leaf in leaves.items()})
    return compare_fp32(
        to_double(run_kernels(prepared, config)), to_double(run_dense(plain)), to_double(run_dense(exact))
    )


def run_kernels(case: KernelCase, config: Config | None) -> dict[str, Tensor]:
    """Return every result of the kernels."""
    from attnscope.attention.triton import launch

    query, key = case.leaves["query"], case.leaves["key"]
    inputs = launch.KernelInputs(query, key, case.intervals, case.terms, config)
    rows = launch.row_statistics(inputs)
    edges = (even_edges(size, min(BINS, size)) for size in (query.shape[2], key.shape[2]))
    sums, largest = launch.bins(inputs, rows.lse_base2, *edges, maximum=True)
    assert largest is not None
    return {
        "lse": rows.lse,
        "entropy": rows.entropy,
        "largest weight": rows.largest_weight,
        "distance": rows.distance,
        "received": launch.received(inputs, rows.lse_base2),
        "A.T @ G": launch.transposed_matmul(inputs, rows.lse_base2, _values(query.shape[:3]).to(query.device)),
        "bins": sums,
        "largest of bins": largest,
    }


def run_dense(dense: DenseAttention) -> dict[str, Tensor]:
    """Return the same from dense attention."""
    weights = dense.weights
    sums, largest = bins(weights, *(even_edges(size, min(BINS, size)) for size in weights.shape[-2:]))
    return {
        "lse": dense.lse,
        "entropy": reference.entropy(weights),
        "largest weight": weights.amax(-1),
        "distance": reference.distance(weights)[0],
        "received": reference.received(weights),
        "A.T @ G": weights.mT @ _values(weights.shape[:3]).to(weights),
        "bins": sums,
        "largest of bins": largest,
    }


def _values(shape: torch.Size) -> Tensor:
    return torch.randn(*shape, COLUMNS, generator=torch.Generator().manual_seed(2))


CONTRACTS = (Contract("Triton kernels", checks),)
