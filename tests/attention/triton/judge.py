"""Runs all kernels on one case and compares every number with dense fp64 code."""

from __future__ import annotations

import math
import mmap
import tempfile

import torch
from torch import Tensor

from attnscope.attention.algebra import Sizes
from attnscope.attention.intervals import to_intervals
from attnscope.attention.spec import Signature, make_spec
from attnscope.attention.triton import launch, reference
from attnscope.attention.triton.configs import Config
from attnscope.attention.triton.score_terms import ScoreTerms, to_score_terms
from attnscope.contracts.tolerances import compare_fp32, find_broken
from tests.attention.triton.cases import BATCH, MASKS, SCORES, Case

CONFIG = Config(block_rows=32, block_keys=32, num_warps=4, num_stages=1)
REACH = 8
SURROUNDINGS = 5  # rows and columns of NaN around queries and keys


class Problem:
    """A case with tensors."""

    def __init__(self, case: Case) -> None:
        queries, keys = map(int, case.lengths.split("x"))
        heads, key_heads = map(int, case.heads.split("/"))
        self.sizes = Sizes(BATCH, heads, queries, keys)
        self.random = torch.Generator().manual_seed(0)
        dtype = getattr(torch, case.dtype)
        growth = torch.linspace(0.1, 4.0, keys)[:, None] if case.scores == "growing" else 1.0
        place = far_apart if case.far_apart else surround
        self.query = place(3 * self.normal(BATCH, heads, queries, case.dim), dtype)
        self.key = place(growth * self.normal(BATCH, key_heads, keys, case.dim), dtype)
        self.mask = MASKS[case.mask](self.sizes)
        signature = Signature(self.query.shape, self.key.shape, self.key.shape, dtype, self.query.device)
        spec = make_spec(
            signature,
            mask=self.mask,
            scale=-(case.dim**-0.5) if case.scores == "negative scale" else None,
            score_mod=SCORES[case.scores](heads),
            dropout=0.0,
        )
        terms, intervals = (
            to_score_terms(spec),
            to_intervals(self.mask.to_regions(self.sizes), self.sizes, self.query.device),
        )
        assert terms is not None
        assert intervals is not None
        self.inputs = launch.KernelInputs(self.query, self.key, intervals, terms, CONFIG)
        self.terms: ScoreTerms = terms
        self.allowed = self.mask.to_dense(self.sizes)
        self.chosen = torch.rand(BATCH, keys, generator=self.random) < 0.3
        self.values = self.normal(BATCH, heads, queries, 19)
        self.ids = tuple(
            torch.randint(3, (3, BATCH, length), generator=self.random) << 33 for length in (queries, keys)
        )

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random)


def surround(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor as a view of a larger one, whose other numbers are NaN."""
    batch, heads, rows, dim = tensor.shape
    larger = torch.full((batch, rows + SURROUNDINGS, heads, dim + 8), math.nan, dtype=dtype).transpose(1, 2)
    view = larger[:, :, :rows, :dim]
    view.copy_(tensor)
    return view


def far_apart(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor with 2^32 elements from its first row to its last, in a sparse file: twice what 32 bits can reach."""
    batch, heads, rows, dim = tensor.shape
    stride = 2**32 // (rows - 1) + 128
    size = (rows * stride + batch * heads * dim) * dtype.itemsize
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
    view = torch.frombuffer(memory, dtype=dtype).as_strided(tensor.shape, (heads * dim, dim, stride, 1))
    view.copy_(tensor)
    return view


def edges_of(problem: Problem) -> dict[str, tuple[list[int], list[int]]]:
    """Row and column edges: narrow bins with an empty one, and wide bins of a part of the matrix."""
    queries, keys = problem.sizes[2:]
    narrow = sorted({*range(2, keys, 13), keys})
    return {
        "narrow": ([0, queries // 3, queries], [*narrow[:2], narrow[1], *narrow[2:]]),
        "wide": ([queries // 4, queries], [3, 20, keys - 2]),
        "equal": ([0, queries // 2, queries], [*range(1, keys, 8), keys]),
    }


def run_kernels(problem: Problem) -> dict[str, Tensor]:
    """Every result of the kernels."""
    inputs = problem.inputs
    rows = launch.row_statistics(inputs, problem.chosen)
    lse = rows.lse_base2
    found = {name: value for name, value in rows._asdict().items() if name != "candidates"}
    found |= launch.neighbour_weights(inputs, lse, REACH)._asdict()
    assert rows.candidates is not None
    found["largest_key"] = launch.largest_keys(inputs, rows.candidates)
    found["spread"] = launch.distance_spread(inputs, lse, rows.distance)
    ids = problem.ids
    found["matched_weight"] = launch.matched_weights(inputs, lse, *ids)
    found["num_matches"] = launch.count_matches(inputs, *ids)[:, None].expand(found["matched_weight"].shape)
    found["received"] = launch.received(inputs, lse)
    found["product"] = launch.transposed_matmul(inputs, lse, problem.values)
    for name, (row_edges, column_edges) in edges_of(problem).items():
        sums, largest = launch.bins(inputs, lse, row_edges, column_edges, maximum=True)
        assert largest is not None
        found |= {f"{name} bins": sums, f"largest of {name} bins": largest}
    return found


def run_reference(problem: Problem, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same by dense code."""
    scores = reference.dense_scores(problem.query, problem.key, problem.allowed, problem.terms, dtype)
    lse = reference.dense_lse(scores, problem.terms.sinks)
    weights = reference.dense_weights(scores, lse)
    found = reference.row_statistics(scores, lse, problem.chosen.to(dtype))
    found |= reference.neighbour_weights(weights, REACH)
    found["spread"] = reference.distance_spread(weights)
    found["matched_weight"] = reference.matched_weights(weights, *problem.ids)
    allowed = problem.allowed.to(dtype).expand(weights.shape)
    found["num_matches"] = reference.matched_weights(allowed, *problem.ids)
    found |= {"received": weights.sum(-2), "product": weights.mT @ problem.values.to(dtype)}
    for name, edges in edges_of(problem).items():
        sums, largest = reference.bins(weights, *edges)
        found |= {f"{name} bins": sums, f"largest of {name} bins": largest}
    return found


def judge(case: Case) -> list[str]:
    """What is wrong with the results of the kernels; an empty list if nothing is."""
    problem = Problem(case)
    got, truth = run_kernels(problem), run_reference(problem, torch.float64)
    plain = run_reference(problem, torch.float32)
    key = got.pop("largest_key").long()
    got, plain = ({name: value.double() for name, value in one.items()} for one in (got, plain))
    complaints = find_broken(compare_fp32(got, plain, truth))
    scores = reference.dense_scores(problem.query, problem.key, problem.allowed, problem.terms)
    has_keys = problem.allowed.any(-1).expand(key.shape)
    if not torch.equal(key >= 0, has_keys):
        complaints.append("largest_key: -1 elsewhere than in rows without keys")
    at_key = scores.gather(-1, key.clamp(min=0)[..., None])[..., 0]
    if (at_key < scores.amax(-1) - 1e-5 * (1 + scores.amax(-1).abs()))[has_keys].any():
        complaints.append("largest_key: a key with a smaller logit")
    return complaints
