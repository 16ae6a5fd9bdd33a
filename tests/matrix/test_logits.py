"""The largest logit of each head equals the largest of all allowed scores, and the position has it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnscope.attention import Causal, Padding, Sinks, from_bool
from attnscope.attention.algebra import Sizes
from attnscope.attention.cells import block_scores
from attnscope.attention.scores import Cells
from attnscope.attention.spec import make_spec, signature_of
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix
from tests.matrix.test_matrix import CASES, SHAPES, Subject


def all_logits(subject: Subject) -> Tensor:
    """Every score in fp64, -inf where the mask does not allow it."""
    query, key = subject.query.double(), subject.key.double()
    spec = make_spec(signature_of(query, key, key), mask=subject.mask, scale=None, score_mod=subject.score, dropout=0.0)
    sizes = Sizes(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    cells = Cells(torch.arange(sizes.queries)[:, None], torch.arange(sizes.keys)[None], sizes)
    return block_scores(spec, query, key, cells)[-1].masked_fill(~subject.allowed, -math.inf)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("mask", "score"), CASES)
def test_the_largest_logit_is_that_of_all_scores(mask: str, score: str, shape: tuple[int, int]) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 4 * 2**-23), (torch.bfloat16, 4 * 2**-23)):
        subject = Subject(mask, score, shape, dtype)
        expected = all_logits(subject).flatten(2)
        found = subject.matrix.max_logit()
        unit = expected.abs().masked_fill(expected == -math.inf, 0.0).amax(-1).clamp(min=1.0)
        cell = expected.gather(2, (found.queries * shape[1] + found.keys).clamp(min=0)[..., None]).squeeze(-1)
        for right in (expected.amax(-1), cell):
            assert ((found.logits == right) | ((found.logits - right).abs() <= tolerance * unit)).all()


def test_sinks_of_any_size_do_not_change_it() -> None:
    query, key = torch.randn(2, 2, 30, 8)
    expected = AttentionMatrix(query, key, mask=Causal()).max_logit()
    for size in (-300.0, 0.0, 300.0):
        sinks = Sinks(torch.full((2,), size))
        found = AttentionMatrix(query, key, mask=Causal(), score_mod=sinks).max_logit()
        assert all(map(torch.equal, found, expected))


def test_a_head_without_allowed_cells_has_none() -> None:
    query, key = torch.randn(2, 2, 1, 5, 4)
    found = AttentionMatrix(query, key, mask=Padding([5, 0])).max_logit()
    assert found.logits[1].item() == -math.inf
    assert (found.queries[1].item(), found.keys[1].item()) == (-1, -1)
    assert found.logits[0].isfinite().all()
    nothing = AttentionMatrix(torch.randn(2, 0, 4), torch.randn(2, 3, 4)).max_logit()
    assert nothing.logits.tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e30])
def test_logits_beyond_the_range_of_exp_are_found(scale: float) -> None:
    query, key = torch.randn(1, 200, 16), torch.randn(1, 200, 16)
    expected = (query.double() @ key.double().mT).mul(scale).amax((-1, -2))
    assert torch.allclose(AttentionMatrix(query, key, scale=scale).max_logit().logits.double(), expected, rtol=1e-6)


def test_the_mask_decides() -> None:
    query, key = torch.randn(1, 6, 4), torch.randn(1, 6, 4)
    allowed = torch.rand(6, 6) > 0.3
    found = AttentionMatrix(query, key, mask=from_bool(attend=allowed)).max_logit()
    assert allowed[int(found.queries), int(found.keys)]


def test_dense_weights_have_no_logits() -> None:
    with pytest.raises(UnsupportedError):
        AttentionMatrix.from_dense(torch.eye(3)).max_logit()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("mask", "score"), CASES)
def test_statistics_of_rows_equal_those_of_the_other_methods(mask: str, score: str, shape: tuple[int, int]) -> None:
    subject = Subject(mask, score, shape)
    found, logits = subject.matrix.row_logits(), all_logits(subject)
    assert torch.allclose(found.max_logit, logits.amax(-1), atol=1e-12)
    assert torch.allclose(logits.gather(3, found.max_key[..., None]).squeeze(-1), logits.amax(-1), atol=1e-12)
    assert torch.allclose(found.entropy, subject.matrix.entropy(exact=True), atol=1e-12)
    assert torch.allclose(found.effective_keys, subject.matrix.effective_keys(), atol=1e-10)
    assert torch.allclose(found.first_weight, subject.matrix[..., 0], atol=1e-12)
