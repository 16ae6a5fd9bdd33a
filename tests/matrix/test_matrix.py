"""Every operation against the dense reference: all masks, all scores, fused and streaming, scored and held."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnscope.attention import (
    ALiBi,
    Bias,
    Causal,
    Documents,
    Full,
    Mask,
    Padding,
    Prefix,
    ScoreMod,
    Sinks,
    Softcap,
    Window,
    from_bool,
)
from attnscope.attention import reference as attention_reference
from attnscope.attention.algebra import Sizes
from attnscope.contracts.tolerances import entropy_allowance
from attnscope.matrix import AttentionMatrix, blocks, reference
from attnscope.matrix.pooling import even_edges
from tests.devices.sizes import set_block_sizes

BATCH, HEADS, KEY_HEADS, DIM = 2, 4, 2, 8


def masks(queries: int, keys: int) -> dict[str, Mask]:
    keep = torch.rand(BATCH, keys, generator=torch.Generator().manual_seed(3)) > 0.4
    keep[:, :4] = False  # the first causal rows are empty
    ids = torch.arange(keys) // 17
    return {
        "full": Full(),
        "causal": Causal(),
        "causal, empty rows": Causal(offset=keys - queries - 6),
        "window": Window(11),
        "two-sided": Window(before=5, after=7),
        "prefix": Causal() | Prefix([9, 30]),
        "documents": Causal() & Documents(ids),
        "padding": Causal() & Padding([keys, keys // 2]),
        "holes": Causal() & Padding(keep=keep),
        "booleans": from_bool(attend=torch.rand(queries, keys, generator=torch.Generator().manual_seed(5)) > 0.5),
    }


def scores(queries: int, keys: int) -> dict[str, ScoreMod | None]:
    heads = torch.linspace(-1.0, 1.0, HEADS)
    bias = torch.randn(HEADS, queries, keys, generator=torch.Generator().manual_seed(7))
    return {
        "plain": None,
        "softcap": Softcap(1.5),
        "slopes": ALiBi(HEADS),
        "bias": Bias(bias),
        "sinks": Sinks(heads),
        "softcap and sinks": Softcap(2.0) + Sinks(heads),
    }


CASES = [(mask, "plain") for mask in masks(4, 4)] + [
    (mask, score) for mask in ("causal", "window", "holes", "booleans") for score in scores(4, 4) if score != "plain"
]
SHAPES = {"square": (73, 73), "cross": (29, 73), "more queries": (61, 40)}


class Subject:
    """A matrix, the dense weights it stands for, and the cells its mask allows."""

    def __init__(self, mask: str, score: str, shape: tuple[int, int], dtype: torch.dtype = torch.float64) -> None:
        queries, keys = shape
        generator = torch.Generator().manual_seed(0)
        self.query = torch.randn(BATCH, HEADS, queries, DIM, generator=generator, dtype=torch.float64).to(dtype)
        self.key = torch.randn(BATCH, KEY_HEADS, keys, DIM, generator=generator, dtype=torch.float64).to(dtype)
        self.mask, self.score = masks(*shape)[mask], scores(*shape)[score]
        if mask == "documents" and queries > keys:
            self.mask = Causal() & Documents(torch.arange(keys) // 17, torch.arange(queries) // 17)
        self.matrix = AttentionMatrix(self.query, self.key, mask=self.mask, score_mod=self.score)
        seen = self.mask.to_dense(Sizes(BATCH, HEADS, queries, keys))
        self.allowed = seen.expand(BATCH, HEADS, -1, -1)

    def dense(self, dtype: torch.dtype = torch.float64) -> Tensor:
        query, key = self.query.to(dtype), self.key.to(dtype)
        return attention_reference.attention(query, key, key, mask=self.mask, score_mod=self.score)[1]


def every_operation(matrix: AttentionMatrix, dense: Tensor, allowed: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Each operation's answer beside the reference's."""
    queries, keys = dense.shape[-2:]
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dense.dtype)

    shared, own, turned = normal(keys, 19), normal(BATCH, HEADS, keys, 3), normal(queries, 11)
    pairs = torch.randint(queries, (40,), generator=generator), torch.randint(keys, (40,), generator=generator)
    rows, columns = even_edges(queries, 7), even_edges(keys, 13)
    spans = [(0, 3), (3, 4), (4, 20), (20, queries)]
    mean, std = reference.distance(dense)
    top = dense.topk(5, dim=-1).values
    found = {
        "block": (matrix[..., 3:17, 5:-1:3], dense[..., 3:17, 5:-1:3]),
        "lists": (matrix[..., [1, 5, -1], [0, 7]], dense[..., [1, 5, -1], :][..., [0, 7]]),
        "row": (matrix[..., 5, :], dense[..., 5, :]),
        "column": (matrix[..., :, 7], dense[..., :, 7]),
        "cell": (matrix[..., -1, 3], dense[..., -1, 3]),
        "scattered cells": (matrix.at(*pairs), dense[..., pairs[0], pairs[1]]),
        "diagonal": (matrix.diagonal(-1), dense.diagonal(-1, -2, -1)),
        "upper diagonal": (matrix.diagonal(2), dense.diagonal(2, -2, -1)),
        "band": (matrix.band(6), reference.band(dense, 6)),
        "A @ F": (matrix @ shared, dense @ shared),
        "A @ f": (matrix @ shared[:, 0], dense @ shared[:, 0]),
        "A @ F of each head": (matrix @ own, dense @ own),
        "A.T @ G": (matrix.T @ turned, dense.mT @ turned),
        "A.T block": (matrix.T[..., 2:9, ::4], dense.mT[..., 2:9, ::4]),
        "entropy": (matrix.entropy(), reference.entropy(dense)),
        "exact entropy": (matrix.entropy(exact=True), reference.entropy(dense)),
        "renyi": (matrix.renyi_entropy(3.0), reference.renyi_entropy(dense, 3.0)),
        "effective keys": (matrix.effective_keys(), reference.effective_keys(dense)),
        "received": (matrix.received(), reference.received(dense)),
        "mass": (matrix.mass([0, 3, -1]), dense[..., [0, 3, -1]].sum(-1)),
        "mean distance": (matrix.distance().mean, mean),
        "std of distance": (matrix.distance().std, std),
        "topk": (matrix.topk(5).weights, top),
        "max": (matrix.max(), dense.amax(-1)),
        "visible cells": (matrix.visible_cells(7, 13), cells_of_bins(allowed, rows, columns).long()),
        "sampled": (
            matrix.sample(7, 13, rows_per_bin=99).density,
            reference.pool(dense, allowed, rows, columns, "density"),
        ),
        "dense": (matrix.to_dense(), dense),
        "one head": (matrix.head(2).received(), dense[:, 2].sum(-2)),
        "one head of a batch row": (matrix.batch(1).head(3)[2:9], dense[1, 3, 2:9]),
        "last batch row": (matrix.batch(-1).entropy(), reference.entropy(dense[-1])),
    }
    for reduction in ("density", "mass", "max"):
        found[reduction] = (matrix.pool(7, 13, reduction), reference.pool(dense, allowed, rows, columns, reduction))
    if queries == keys:
        words = reference.merge_tokens(dense, spans)
        found["merged"] = (matrix.merge_tokens(spans).to_dense(), words)
        found["merged @"] = (matrix.merge_tokens(spans) @ turned[:4], words @ turned[:4])
        found["merged.T @"] = (matrix.merge_tokens(spans).T @ turned[:4], words.mT @ turned[:4])
    return found


def cells_of_bins(allowed: Tensor, rows: list[int], columns: list[int]) -> Tensor:
    before = torch.zeros(*allowed.shape[:-2], allowed.shape[-2] + 1, allowed.shape[-1] + 1, dtype=torch.float64)
    before[..., 1:, 1:] = allowed.double().cumsum(-1).cumsum(-2)
    corners = before[..., rows, :][..., columns]
    return corners.diff(dim=-1).diff(dim=-2)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks in small blocks, so that these sizes cross their edges."""
    set_block_sizes(monkeypatch, pass_cells=9 * 36 * HEADS, head_cells=9 * 36)
    monkeypatch.setattr(blocks, "ALIGNMENT", 1)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("mask", "score"), CASES)
def test_every_operation_equals_dense_in_fp64(mask: str, score: str, shape: tuple[int, int]) -> None:
    subject = Subject(mask, score, shape)
    dense = subject.dense()
    for name, (got, right) in every_operation(subject.matrix, dense, subject.allowed).items():
        torch.testing.assert_close(got, right, rtol=0, atol=1e-10, msg=f"{name}: {(got - right).abs().max()}")


@pytest.mark.parametrize("mask", masks(4, 4))
def test_a_matrix_made_from_dense_weights_answers_the_same(mask: str) -> None:
    dense = Subject(mask, "plain", SHAPES["square"]).dense()
    for name, (got, right) in every_operation(AttentionMatrix.from_dense(dense), dense, dense > 0).items():
        torch.testing.assert_close(got, right, rtol=0, atol=1e-10, msg=f"{name}: {(got - right).abs().max()}")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("mask", "score"), CASES)
def test_fp32_keeps_the_four_times_rule(mask: str, score: str, shape: tuple[int, int]) -> None:
    subject = Subject(mask, score, shape, torch.float32)
    truth, plain = subject.dense(), subject.dense(torch.float32)
    right = every_operation(AttentionMatrix.from_dense(truth), truth, subject.allowed)
    dense = every_operation(AttentionMatrix.from_dense(plain), plain, subject.allowed)
    for name, (got, _) in every_operation(subject.matrix, plain, subject.allowed).items():
        answer = right[name][1]
        error, theirs = (got.double() - answer).abs().max(), (dense[name][1].double() - answer).abs().max()
        bound = 4 * theirs + 4 * torch.finfo(torch.float32).eps * answer.abs().max() + allowance(name, subject)
        assert error <= bound, f"{name}: {error:.3g} > {bound:.3g}"


def allowance(name: str, subject: Subject) -> float:
    """The default entropy subtracts numbers that may be larger than it; everything else needs no allowance."""
    scale = 1 / math.sqrt(DIM)
    return entropy_allowance(subject.query, subject.key, subject.matrix.lse, scale) if name == "entropy" else 0.0


@pytest.mark.parametrize(
    ("mask", "score"), [("causal", "plain"), ("holes", "plain"), ("causal", "softcap"), ("window", "sinks")]
)
def test_bf16_inputs_give_the_numbers_of_fp32_arithmetic(mask: str, score: str) -> None:
    stored = Subject(mask, score, SHAPES["square"], torch.bfloat16)
    upcast = AttentionMatrix(stored.query.float(), stored.key.float(), mask=stored.mask, score_mod=stored.score)
    dense = stored.dense(torch.float32)
    exact = every_operation(upcast, dense, stored.allowed)
    for name, (got, _) in every_operation(stored.matrix, dense, stored.allowed).items():
        torch.testing.assert_close(got, exact[name][0], rtol=0, atol=0, msg=name)


def test_value_weights_are_the_norms_of_what_is_written() -> None:
    subject = Subject("causal", "plain", SHAPES["square"])
    value = torch.randn(BATCH, KEY_HEADS, 73, 5, dtype=torch.float64)
    output = torch.randn(HEADS, 5, 30, dtype=torch.float64)
    matrix = AttentionMatrix(subject.query, subject.key, mask=subject.mask, value=value)
    each = value.repeat_interleave(2, dim=1)
    dense = subject.dense()
    for weighted, norms in (
        (matrix.value_weighted(), each.norm(dim=-1)),
        (matrix.value_weighted(output), (each @ output).norm(dim=-1)),
    ):
        right = dense * norms[:, :, None, :]
        values = torch.randn(73, 2, dtype=torch.float64)
        torch.testing.assert_close(weighted.to_dense(), right)
        torch.testing.assert_close(weighted[..., 4:9, 1:3], right[..., 4:9, 1:3])
        torch.testing.assert_close(weighted @ values, right @ values)
        torch.testing.assert_close(weighted.T @ values, right.mT @ values)
    torch.testing.assert_close(matrix.head(3).value_weighted(output[3:]).to_dense(), (dense * norms[:, :, None])[:, 3])


def test_topk_finds_the_keys() -> None:
    subject = Subject("causal", "plain", SHAPES["square"])
    weights, keys = subject.matrix.topk(4)
    assert (keys[:, :, 0] == torch.tensor([0, -1, -1, -1])).all()
    assert (weights[:, :, 0, 1:] == 0).all()
    torch.testing.assert_close(subject.dense().gather(-1, keys.clamp(min=0))[:, :, 4:], weights[:, :, 4:])
