"""What holds for every matrix, whatever its numbers (Hypothesis), and for heads that are as peaked as trained ones."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnscope.attention import Causal, Documents, Full, Mask, Padding, Sinks, Softcap, Window
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.lazy_weights import LazyWeights

lengths = st.integers(2, 40)
seeds = st.integers(0, 2**16)


@st.composite
def matrices(draw: st.DrawFn) -> AttentionMatrix:
    queries = draw(lengths)
    keys = draw(st.just(queries) | lengths.filter(lambda keys: keys >= queries))
    generator = torch.Generator().manual_seed(draw(seeds))
    sharpness = draw(st.sampled_from([0.1, 1.0, 5.0]))
    query = sharpness * torch.randn(1, 4, queries, 4, generator=generator, dtype=torch.float64)
    key = torch.randn(1, 2, keys, 4, generator=generator, dtype=torch.float64)
    mask: Mask = draw(
        st.sampled_from(
            [
                Full(),
                Causal(),
                Window(3),
                Causal() & Documents(torch.arange(keys) // 5),
                Causal() & Padding([max(1, keys // 2)]),
                Causal(offset=-2),
            ]
        )
    )
    score = draw(st.sampled_from([None, Softcap(2.0)]))
    return AttentionMatrix(query, key, mask=mask, score_mod=score)


def has_key(matrix: AttentionMatrix) -> Tensor:
    return matrix.lse > -math.inf


@given(matrices())
@settings(max_examples=60)
def test_rows_sum_to_one_where_they_have_a_key(matrix: AttentionMatrix) -> None:
    ones = torch.ones(matrix.shape[-1], dtype=torch.float64)
    torch.testing.assert_close(matrix @ ones, has_key(matrix).double())
    torch.testing.assert_close(matrix.to_dense().sum(-1), has_key(matrix).double())


@given(matrices())
@settings(max_examples=40)
def test_sinks_take_their_share_of_every_row(matrix: AttentionMatrix) -> None:
    source = matrix._source
    assert isinstance(source, LazyWeights)
    sunk = AttentionMatrix(source.query, source.key, mask=source.spec.mask, score_mod=Sinks(torch.zeros(4)))
    total = sunk @ torch.ones(matrix.shape[-1], dtype=torch.float64)
    share = (-sunk.lse).exp()  # of a sink of score 0
    torch.testing.assert_close(total, torch.where(has_key(matrix), 1 - share, 0.0))
    assert (share[has_key(matrix)] > 0).all()


@given(matrices())
@settings(max_examples=60)
def test_what_is_received_was_given(matrix: AttentionMatrix) -> None:
    torch.testing.assert_close(matrix.received().sum(-1), has_key(matrix).sum(-1).double())


@given(matrices(), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=60)
def test_pooled_mass_is_conserved(matrix: AttentionMatrix, rows: int, columns: int) -> None:
    rows, columns = min(rows, matrix.shape[-2]), min(columns, matrix.shape[-1])
    some = matrix.pool(rows, columns, "mass").sum(-1)
    seeing = matrix.pool(rows, 1, "mass").squeeze(-1)
    torch.testing.assert_close(some, seeing)
    total = (matrix.pool(rows, columns) * matrix.visible_cells(rows, columns)).sum((-1, -2))
    torch.testing.assert_close(total, has_key(matrix).sum(-1).double())


@given(matrices())
@settings(max_examples=60)
def test_a_parent_has_the_maximum_of_its_children(matrix: AttentionMatrix) -> None:
    queries, keys = (size // 4 * 4 for size in matrix.shape[-2:])
    if not queries or not keys:
        return
    whole = AttentionMatrix.from_dense(matrix[..., :queries, :keys])
    children = whole.pool(4, 4, "max").unflatten(-1, (2, 2)).unflatten(-3, (2, 2))
    torch.testing.assert_close(whole.pool(2, 2, "max"), children.amax((-1, -3)))


@given(matrices())
@settings(max_examples=30)
def test_the_transpose_of_the_transpose_is_the_matrix(matrix: AttentionMatrix) -> None:
    assert matrix.T.T is matrix
    assert torch.equal(matrix.T.to_dense(), matrix.to_dense().mT)
    torch.testing.assert_close(matrix.T.pool(2, 2), matrix.pool(2, 2).mT)


@given(matrices())
@settings(max_examples=40)
def test_entropies_are_ordered(matrix: AttentionMatrix) -> None:
    """0 <= Rényi of order 3 <= of order 2 <= Shannon <= logarithm of the keys seen."""
    seen = matrix.visible_cells(matrix.shape[-2], 1).squeeze(-1)
    order = [
        torch.zeros_like(seen),
        matrix.renyi_entropy(3),
        matrix.renyi_entropy(2),
        matrix.entropy(exact=True),
        seen.clamp(min=1).log(),
    ]
    for lower, higher in pairwise(order):
        assert (lower <= higher + 1e-9).all()


LONG = 131_072


def peaked(kind: str) -> tuple[Tensor, Tensor]:
    """Query and key of a head that looks at the previous token, or at the first one, nearly always."""
    generator = torch.Generator().manual_seed(0)
    phase = torch.randn(LONG + 1, 32, generator=generator)
    tokens = torch.nn.functional.normalize(phase, dim=-1) * 6.0
    if kind == "previous":
        return tokens[:-1] * 0.9, torch.roll(tokens[:-1], -1, 0) * 4.0
    key = torch.randn(LONG, 32, generator=generator) * 0.1
    query = torch.ones(LONG, 32) + 0.1 * torch.randn(LONG, 32, generator=generator)
    key[0] = 3.0
    return query, key


ROWS = (1, 2, 1000, 65_535, 100_000, LONG - 2, LONG - 1)


@pytest.mark.parametrize("kind", ["previous", "sink"])
def test_peaked_heads_at_length_agree_with_fp64_rows(kind: str) -> None:
    query, key = peaked(kind)
    errors: dict[str, list[float]] = {"mean": [], "std": [], "entropy": [], "exact": [], "dense formula": []}
    scale, eps, size = 1 / math.sqrt(32), torch.finfo(torch.float32).eps, 0.0
    for row in ROWS:
        truth = fp64_row(query, key, row)
        start = max(0, row - 3)
        matrix = AttentionMatrix(query[start : row + 1], key[: row + 1], mask=Causal())
        distance = matrix.distance()
        errors["mean"].append(abs(float(distance.mean[-1]) - truth["mean"]) / max(1.0, truth["mean"]))
        errors["std"].append(abs(float(distance.std[-1]) - truth["std"]) / max(1.0, truth["std"]))
        errors["entropy"].append(abs(float(matrix.entropy()[-1]) - truth["entropy"]))
        errors["exact"].append(abs(float(matrix.entropy(exact=True)[-1]) - truth["entropy"]))
        scores = scale * (query[row] @ key[: row + 1].T)
        mean_key = scores.softmax(-1) @ key[: row + 1]
        formula = scores.logsumexp(-1) - scale * (query[row] * mean_key).sum()
        errors["dense formula"].append(abs(float(formula) - truth["entropy"]))
        size = max(size, truth["lse"] + scale * float(query[row].norm() * mean_key.norm()))
    # Weights are exp(score - lse), each off by eps * |lse| of itself.
    assert max(errors["mean"]) <= 4 * eps * size
    assert max(errors["std"]) <= 4 * eps * size
    assert max(errors["exact"]) <= 4 * eps * size
    # The fused path subtracts two numbers of that size. fp32 sums of one large and many tiny weights add to its error,
    # in dense code no less.
    assert max(errors["entropy"]) <= 4 * max(eps * size, *errors["dense formula"])


def fp64_row(query: Tensor, key: Tensor, row: int) -> dict[str, float]:
    """One causal row, alone, dense and in fp64."""
    scores = query[row].double() @ key[: row + 1].double().T / math.sqrt(32)
    weights = scores.softmax(-1)
    away = row - torch.arange(row + 1)
    mean = (weights * away).sum()
    return {
        "lse": float(scores.logsumexp(-1)),
        "mean": float(mean),
        "std": float((weights * (away - mean).square()).sum().sqrt()),
        "entropy": float(-torch.special.xlogy(weights, weights).sum()),
    }
