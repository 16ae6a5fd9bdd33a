"""The private operators have the form that the fused engine was written for."""

import math
from collections.abc import Iterator

import pytest
import torch

from attnscope.attention import Causal, attend, explain, kernels
from attnscope.attention.operation import _kept_plan
from attnscope.attention.partial import forward, plan_part
from attnscope.attention.rule import make_rule, sign
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix

CHANGED = kernels.BACKWARD.replace("float? scale=None)", "float? scale=None, bool enable_gqa=False)")
GONE = kernels.FORWARD.replace("flash_attention_for_cpu", "flash_attention_for_nobody")


@pytest.fixture
def other_operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch whose operators are not the ones that the fused engine was written for."""
    monkeypatch.setattr(kernels, "DIFFERENCE", kernels.find_difference(kernels.FORWARD, CHANGED))
    monkeypatch.setattr(kernels, "flash", None)
    monkeypatch.setattr(kernels, "flash_backward", None)
    _kept_plan.cache_clear()
    yield
    _kept_plan.cache_clear()


def test_the_installed_torch_has_the_expected_schemas() -> None:
    assert kernels.find_difference(kernels.FORWARD, kernels.BACKWARD) is None
    assert kernels.DIFFERENCE is None


@pytest.mark.parametrize(
    ("schema", "reason"), [(CHANGED, "has another signature for"), (GONE, "does not have")], ids=["changed", "gone"]
)
def test_a_difference_is_described(schema: str, reason: str) -> None:
    name = schema.partition("(")[0]
    assert kernels.find_difference(kernels.FORWARD, schema) == (
        f"torch {torch.__version__} {reason} the operator {name} that the fused kernel calls"
    )


@pytest.mark.usefixtures("other_operators")
def test_with_other_operators_attend_streams_and_says_why() -> None:
    query, key, value = (torch.randn(2, 2, 40, 8, requires_grad=True) for _ in range(3))
    plan = explain(query, key, value, mask=Causal())
    assert plan.engine == "streaming"
    assert f"torch {torch.__version__} has another signature for" in plan.why
    with pytest.raises(
        UnsupportedError, match=r"backend='fused' cannot answer this exactly: torch .* another signature"
    ):
        attend(query, key, value, mask=Causal(), backend="fused")
    output = attend(query, key, value, mask=Causal())
    right = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(output, right)
    found, expected = (torch.autograd.grad(one.square().sum(), (query, key, value)) for one in (output, right))
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("other_operators")
def test_with_other_operators_the_matrix_and_parts_of_it_stream() -> None:
    query, key = torch.randn(1, 2, 30, 8), torch.randn(1, 2, 30, 8)
    matrix = AttentionMatrix(query, key, mask=Causal())
    scores = (query @ key.mT / math.sqrt(8)).masked_fill(~torch.ones(30, 30, dtype=torch.bool).tril(), -torch.inf)
    weights = scores.softmax(-1)
    torch.testing.assert_close(matrix.received(), weights.sum(-2))
    torch.testing.assert_close(matrix.T @ torch.eye(30), weights.mT)
    torch.testing.assert_close(matrix.summary(6, 6).entropy, matrix.entropy())
    rule = make_rule(sign(query, key, key), mask=Causal(), scale=None, score_mod=None, dropout=0.0)
    lowered = rule.mask.lower(rule.sizes)
    assert lowered is not None
    part = plan_part(rule, lowered, ((10, 30),), ((0, 20),))
    assert part is not None
    assert part.engine == "streaming"
    torch.testing.assert_close(
        forward(part, query[:, :, 10:], key[:, :, :20], key[:, :, :20])[1], scores[:, :, 10:, :20].logsumexp(-1)
    )


def test_causal_counts_from_the_upper_left() -> None:
    query, key = torch.zeros(1, 1, 2, 5), torch.zeros(1, 1, 5, 5)
    output, _ = kernels.flash(query, key, torch.eye(5)[None, None], causal=True, scale=1.0)
    torch.testing.assert_close(output[0, 0], torch.tensor([[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]]))


def test_a_row_without_keys_has_lse_zero_as_the_fused_engine_expects() -> None:
    mask = torch.full((1, 1, 1, 3), -torch.inf)
    output, lse = kernels.flash(*(torch.ones(1, 1, 3, 4),) * 3, causal=False, scale=1.0, mask=mask)
    assert (lse == 0.0).all()
    assert (output == 0.0).all()


def test_the_backward_takes_the_lse_of_the_whole_row() -> None:
    query, key, value = (torch.randn(1, 1, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    above = torch.randn(1, 1, 6, 4, dtype=torch.float64)
    (torch.softmax(query @ key.mT, -1) @ value).backward(above)
    with torch.no_grad():
        output, lse = kernels.flash(query, key, value, causal=False, scale=1.0)
        halves = [
            kernels.flash_backward(
                above, query, key[:, :, half], value[:, :, half], output, lse, causal=False, scale=1.0
            )
            for half in (slice(0, 2), slice(2, 6))
        ]
    torch.testing.assert_close(halves[0][0] + halves[1][0], query.grad)
    torch.testing.assert_close(torch.cat([halves[0][1], halves[1][1]], 2), key.grad)
    torch.testing.assert_close(torch.cat([halves[0][2], halves[1][2]], 2), value.grad)
