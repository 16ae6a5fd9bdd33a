"""Bins are what plain loops over the dense weights make of them: all masks and scores, any edges, scored and held."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from attnscope.attention import Bias, Causal, Padding, Softcap
from attnscope.attention.algebra import Sizes
from attnscope.errors import Cancelled
from attnscope.matrix import AttentionMatrix, blocks, reference
from attnscope.matrix.bins import Bins
from attnscope.matrix.lazy_weights import LazyWeights
from tests.devices.sizes import set_block_sizes
from tests.largest import LargestTensor
from tests.matrix.test_matrix import BATCH, CASES, HEADS, SHAPES, Subject

EVERYTHING = "everything"
EDGES = {  # of the first rows and columns
    EVERYTHING: ([0, 4, 8, 12, 16, 20, 24, 28], [0, 8, 16, 24, 32]),
    "inside": ([3, 5, 7, 9, 11, 12], [9, 12, 15, 18, 19]),
    "cells": (list(range(6, 17)), list(range(2, 13))),
    "uneven": ([1, 2, 9, 11, 24], [0, 1, 17, 18, 20, 33]),
    "one bin": ([2, 27], [1, 39]),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 7 x 25 or so, so that these sizes cross their edges."""
    set_block_sizes(monkeypatch, pass_cells=9 * 20 * HEADS, head_cells=9 * 20)
    monkeypatch.setattr(blocks, "ALIGNMENT", 1)


def plain(dense: Tensor, allowed: Tensor, rows: list[int], columns: list[int]) -> Bins:
    """The obvious loops."""
    shape = (*dense.shape[:-2], len(rows) - 1, len(columns) - 1)
    total, cells, largest = torch.zeros(shape).to(dense), torch.zeros(shape).long(), torch.zeros(shape).to(dense)
    for i, (top, bottom) in enumerate(pairwise(rows)):
        for j, (left, right) in enumerate(pairwise(columns)):
            total[..., i, j] = dense[..., top:bottom, left:right].sum((-1, -2))
            cells[..., i, j] = allowed[..., top:bottom, left:right].sum((-1, -2))
            largest[..., i, j] = dense[..., top:bottom, left:right].amax((-1, -2))
    part = dense[..., rows[0] : rows[-1], columns[0] : columns[-1]]
    return Bins(total, cells, largest, reference.entropy(part), reference.received(part))


def assert_same(found: Bins, right: Bins, rtol: float | None = None, atol: float | None = None) -> None:
    assert torch.equal(found.visible_cells, right.visible_cells)
    for name in ("sums", "max", "entropy", "received"):
        got, wanted = getattr(found, name), getattr(right, name)
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def ends(edges: str, shape: tuple[int, int]) -> tuple[list[int], list[int]]:
    rows, columns = EDGES[edges]
    return ([*rows, shape[0]], [*columns, shape[1]]) if edges == EVERYTHING else (rows, columns)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("mask", "score"), CASES, ids=lambda name: name)
def test_bins_are_those_of_the_dense_weights(mask: str, score: str, shape: tuple[int, int]) -> None:
    subject = Subject(mask, score, shape)
    for edges in EDGES:
        rows, columns = ends(edges, shape)
        right = plain(subject.dense(), subject.allowed, rows, columns)
        assert_same(subject.matrix.bins(rows, columns), right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("score", ["plain", "softcap and sinks"])
@pytest.mark.parametrize("edges", EDGES)
def test_known_normalisers_change_nothing(edges: str, score: str) -> None:
    subject = Subject("holes", score, SHAPES["cross"])
    rows, columns = ends(edges, SHAPES["cross"])
    before = subject.matrix.bins(rows, columns)
    assert subject.matrix.lse.shape[-1] == SHAPES["cross"][0]
    assert_same(subject.matrix.bins(rows, columns), before, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bins_of_halves_are_those_of_the_stored_numbers_in_single_precision(dtype: torch.dtype) -> None:
    subject = Subject("causal", "plain", SHAPES["square"], dtype)
    rows, columns = ends(EVERYTHING, SHAPES["square"])
    found = subject.matrix.bins(rows, columns)
    assert found.sums.dtype == torch.float32
    right = plain(subject.dense(torch.float64), subject.allowed, rows, columns)
    assert_same(found, Bins(*(part.float() if part.is_floating_point() else part for part in right)))


@pytest.mark.parametrize("edges", EDGES)
def test_bins_of_weights_that_are_there_count_what_is_above_zero(edges: str) -> None:
    subject = Subject("window", "plain", SHAPES["square"])
    dense = subject.dense()
    rows, columns = ends(edges, SHAPES["square"])
    assert_same(AttentionMatrix.from_dense(dense).bins(rows, columns), plain(dense, dense > 0, rows, columns))


def test_bins_have_the_leading_axes_that_are_left() -> None:
    subject = Subject("holes", "bias", SHAPES["square"])
    rows, columns = EDGES["uneven"]
    one = subject.matrix.batch(1).head(3).bins(rows, columns)
    assert one.sums.shape == (4, 5)
    assert_same(one, Bins(*(part[1, 3] for part in subject.matrix.bins(rows, columns))))


def test_rows_sum_to_one_over_the_bins_of_columns() -> None:
    subject = Subject("two-sided", "plain", SHAPES["square"])
    found = subject.matrix.bins(range(74), [0, 1, 30, 73])
    torch.testing.assert_close(found.sums.sum(-1), torch.ones(BATCH, HEADS, 73, dtype=torch.float64))


def test_rows_per_bin_reads_at_the_middle_rows_of_bins_alone() -> None:
    subject = Subject("causal", "softcap", SHAPES["square"])
    edges, columns = [10, 20, 30, 31, 73], [0, 5, 10, 73]
    found = subject.matrix.bins(edges, columns, rows_per_bin=1)
    picked = [15, 25, 30, 52]
    right = plain(subject.dense()[..., picked, :], subject.allowed[..., picked, :], [0, 1, 2, 3, 4], columns)
    assert_same(found, right, rtol=1e-12, atol=1e-14)


def test_rows_per_bin_above_the_rows_of_a_bin_reads_at_all_of_them() -> None:
    subject = Subject("documents", "sinks", SHAPES["cross"])
    rows, columns = EDGES["uneven"]
    assert_same(
        subject.matrix.bins(rows, columns, rows_per_bin=99), subject.matrix.bins(rows, columns), rtol=1e-12, atol=0.0
    )


def test_some_rows_do_not_compute_the_normalisers_of_all() -> None:
    matrix = AttentionMatrix(torch.randn(400, 8), torch.randn(400, 8), mask=Causal())
    matrix.bins(range(301, 330), range(50))
    assert isinstance(matrix._source, LazyWeights)
    assert matrix._source.cached_lse is None
    matrix.bins([0, 399], [0, 400])
    assert matrix._source.cached_lse is not None


def test_bins_without_an_allowed_cell_have_zeros_and_need_no_normalisers(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = AttentionMatrix(torch.randn(400, 8), torch.randn(400, 8), mask=Causal())
    monkeypatch.setattr(LazyWeights, "lse_of", None)
    found = matrix.bins([0, 20, 40], [40, 50])
    assert not any(part.any() for part in found)


def test_weights_too_small_for_their_precision_are_nothing() -> None:
    query, key = torch.full((40, 1), 1.0), torch.full((40, 1), -300.0)
    key[0] = 0.0
    found = AttentionMatrix(query, key, scale=1.0).bins(range(41), [0, 1, 40])
    assert torch.equal(found.sums[:, 0], torch.ones(40))
    assert found.sums[:, 1].max() < 1e-35
    assert found.max[:, 1].max() < 1e-36
    assert found.entropy.abs().max() < 1e-30


def test_masked_numbers_that_are_not_numbers_stay_out() -> None:
    key = torch.randn(30, 4)
    key[20:] = torch.nan
    matrix = AttentionMatrix(torch.randn(30, 4), key, mask=Padding([20]))
    found = matrix.bins([0, 15, 30], [0, 10, 20, 30])
    assert all(part.isfinite().all() for part in found)
    assert found.visible_cells[:, 2].tolist() == [0, 0]
    assert (found.sums.sum(-1) - 15).abs().max() < 1e-4


@pytest.mark.parametrize(
    "rows", [[0], [], [3, 3], [4, 2], [-1, 4], [0, 31]], ids=["one", "none", "equal", "falling", "negative", "beyond"]
)
def test_edges_that_are_none_are_refused(rows: list[int]) -> None:
    matrix = AttentionMatrix(torch.randn(30, 4), torch.randn(20, 4))
    with pytest.raises(ValueError, match="row edges between 0 and 30"):
        matrix.bins(rows, [0, 20])
    with pytest.raises(ValueError, match="column edges between 0 and 20"):
        matrix.bins([0, 30], rows)
    with pytest.raises(ValueError, match=r"rows_per_bin.*got 0"):
        matrix.bins([0, 30], [0, 20], rows_per_bin=0)


def test_bins_report_progress_and_stop_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    set_block_sizes(monkeypatch, pass_cells=9 * 20)  # one head at a time
    reports: list[float] = []
    matrix = AttentionMatrix(torch.randn(3, 40, 4), torch.randn(3, 40, 4))
    matrix.with_options(progress=reports.append).bins([0, 20, 40], [0, 40])
    assert reports == sorted(reports)
    assert reports[-1] == pytest.approx(1.0)
    assert len(reports) > 10
    with pytest.raises(Cancelled):
        matrix.with_options(should_stop=lambda: len(reports) > 5).bins([0, 20, 40], [0, 40])


def test_no_tensor_grows_with_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    query, key = torch.randn(3000, 8), torch.randn(3000, 8)
    matrix = AttentionMatrix(query, key, score_mod=Softcap(5.0), lse=torch.zeros(3000)).with_options(max_bytes=2**20)
    with LargestTensor() as largest:
        matrix.bins([0, 3000], [0, 3000])
    assert largest.bytes <= 2**18


def test_a_bias_that_knows_positions_stays_where_it_is() -> None:
    bias = torch.randn(30, 30, dtype=torch.float64)
    nothing = torch.zeros(30, 1, dtype=torch.float64)
    matrix = AttentionMatrix(nothing, nothing, score_mod=Bias(bias), mask=Causal())
    dense = bias.masked_fill(~Causal().to_dense(Sizes(1, 1, 30, 30))[0, 0], -torch.inf).softmax(-1)
    found = matrix.bins(range(7, 21), range(3, 19))
    torch.testing.assert_close(found.sums, dense[7:20, 3:18])
