"""The private operators have the form that the fused backend was written for."""

import math
from collections.abc import Iterator

import pytest
import torch

from attnscope.attention import Causal, attend, explain, kernels, operators
from attnscope.attention.operation import _cached_plan
from attnscope.errors import UnsupportedError
from attnscope.matrix import AttentionMatrix

FORWARD_SCHEMA, BACKWARD_SCHEMA = operators.CPU_FLASH.schemas
CHANGED = BACKWARD_SCHEMA.replace("float? scale=None)", "float? scale=None, bool enable_gqa=False)")
GONE = FORWARD_SCHEMA.replace("flash_attention_for_cpu", "flash_attention_for_nobody")


@pytest.fixture
def other_operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch whose operators are not the ones that the fused backend was written for."""
    difference = operators.find_schema_mismatch(FORWARD_SCHEMA, CHANGED)
    monkeypatch.setitem(operators.SCHEMA_MISMATCHES, "cpu", difference)
    monkeypatch.setattr(kernels, "flash_attention", None)
    monkeypatch.setattr(kernels, "flash_attention_backward", None)
    _cached_plan.cache_clear()
    yield
    _cached_plan.cache_clear()


def test_the_installed_torch_has_the_expected_schemas() -> None:
    assert operators.SCHEMA_MISMATCHES == {"cpu": None, "cuda": None, "rocm": None}


@pytest.mark.parametrize(
    ("schema", "reason"), [(CHANGED, "has another signature for"), (GONE, "does not have")], ids=["changed", "gone"]
)
def test_a_difference_is_described(schema: str, reason: str) -> None:
    name = schema.partition("(")[0]
    assert operators.find_schema_mismatch(FORWARD_SCHEMA, schema) == (
        f"torch {torch.__version__} {reason} the operator {name} that the fused kernel calls"
    )


@pytest.mark.usefixtures("other_operators")
def test_with_other_operators_attend_streams_and_says_why() -> None:
    query, key, value = (torch.randn(2, 2, 40, 8, requires_grad=True) for _ in range(3))
    plan = explain(query, key, value, mask=Causal())
    assert plan.backend == "streaming"
    assert f"torch {torch.__version__} has another signature for" in plan.why
    with pytest.raises(UnsupportedError, match=r"backend='fused'.*torch .* another signature"):
        attend(query, key, value, mask=Causal(), backend="fused")
    output = attend(query, key, value, mask=Causal())
    right = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(output, right)
    found, expected = (torch.autograd.grad(one.square().sum(), (query, key, value)) for one in (output, right))
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("other_operators")
def test_with_other_operators_the_matrix_streams() -> None:
    query, key = torch.randn(1, 2, 30, 8), torch.randn(1, 2, 30, 8)
    matrix = AttentionMatrix(query, key, mask=Causal())
    scores = (query @ key.mT / math.sqrt(8)).masked_fill(~torch.ones(30, 30, dtype=torch.bool).tril(), -torch.inf)
    weights = scores.softmax(-1)
    torch.testing.assert_close(matrix.received(), weights.sum(-2))
    torch.testing.assert_close(matrix.T @ torch.eye(30), weights.mT)
    torch.testing.assert_close(matrix.summary(6, 6).entropy, matrix.entropy())


def test_causal_counts_from_the_upper_left() -> None:
    query, key = torch.zeros(1, 1, 2, 5), torch.zeros(1, 1, 5, 5)
    output, _ = kernels.flash_attention(query, key, torch.eye(5)[None, None], is_causal=True, scale=1.0)
    torch.testing.assert_close(output[0, 0], torch.tensor([[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]]))


def test_a_row_without_keys_has_lse_zero_as_the_fused_backend_expects() -> None:
    mask = torch.full((1, 1, 1, 3), -torch.inf)
    output, lse = kernels.flash_attention(*(torch.ones(1, 1, 3, 4),) * 3, is_causal=False, scale=1.0, attn_mask=mask)
    assert (lse == 0.0).all()
    assert (output == 0.0).all()


def test_the_backward_takes_the_lse_of_the_whole_row() -> None:
    query, key, value = (torch.randn(1, 1, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    above = torch.randn(1, 1, 6, 4, dtype=torch.float64)
    (torch.softmax(query @ key.mT, -1) @ value).backward(above)
    with torch.no_grad():
        output, lse = kernels.flash_attention(query, key, value, is_causal=False, scale=1.0)
        halves = [
            kernels.flash_attention_backward(
                above, query, key[:, :, half], value[:, :, half], output, lse, is_causal=False, scale=1.0
            )
            for half in (slice(0, 2), slice(2, 6))
        ]
    torch.testing.assert_close(halves[0][0] + halves[1][0], query.grad)
    torch.testing.assert_close(torch.cat([halves[0][1], halves[1][1]], 2), key.grad)
    torch.testing.assert_close(torch.cat([halves[0][2], halves[1][2]], 2), value.grad)
