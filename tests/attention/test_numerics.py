"""Every backend against the golden dense code: outputs, lse and all gradients, by the Tier A and Tier B rules.

Blocks are made tiny here, so that sizes small enough for a golden matrix still cross many of their edges.
"""

from __future__ import annotations

import pytest
import torch

from attnscope.attention import Full, attend, kernel_blocks
from attnscope.attention.operation import Backend
from attnscope.errors import UnsupportedError
from tests.attention.cases import CASES, NOT_FUSED, SHAPES, answers
from tests.attention.oracle import Case, Shape, golden, make_inputs, measured, tier_a, tier_b
from tests.devices.sizes import set_block_sizes

ANSWERS = answers(CASES)
pytestmark = pytest.mark.usefixtures("tiny_blocks")
HARD_SHAPES = ["square", "grouped heads", "fewer queries", "more queries"]


def judge(backend: Backend, case: Case, shape: Shape, dtype: torch.dtype, *, growing: bool = False) -> list[str]:
    """What the rule for this dtype finds wrong with the backend.

    A gradient of two or three sinks is too small a sample of dense code's error: such cases are drawn several times.
    """
    draws = [make_inputs(case, shape, dtype, growing=growing, seed=seed) for seed in range(6 if case.parameters else 1)]
    got = stacked([measured(case, shape, inputs, backend) for inputs in draws])
    truth = stacked([golden(case, shape, inputs, torch.float64) for inputs in draws])
    plain = stacked([golden(case, shape, inputs, dtype) for inputs in draws])
    return tier_a(got, plain, truth) if dtype == torch.float32 else tier_b(got, plain, truth, dtype)


def stacked(results: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([result[name] for result in results]) for name in results[0]}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("backend", "case"), ANSWERS)
def test_fp32_is_within_four_times_the_error_of_dense_code(backend: Backend, case: Case, shape: Shape) -> None:
    assert judge(backend, case, shape, torch.float32) == []


@pytest.mark.parametrize("shape", HARD_SHAPES)
@pytest.mark.parametrize(("backend", "case"), ANSWERS)
def test_keys_of_growing_norm_stay_within_the_same_rule(backend: Backend, case: Case, shape: str) -> None:
    assert judge(backend, case, SHAPES[shape], torch.float32, growing=True) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("shape", HARD_SHAPES)
@pytest.mark.parametrize(("backend", "case"), ANSWERS)
def test_low_precision_is_no_worse_than_dense_code_in_that_dtype(
    backend: Backend, case: Case, shape: str, dtype: torch.dtype
) -> None:
    assert judge(backend, case, SHAPES[shape], dtype) == []


@pytest.mark.parametrize("shape", HARD_SHAPES)
@pytest.mark.parametrize(("backend", "case"), ANSWERS)
def test_fp64_agrees_to_rounding(backend: Backend, case: Case, shape: str) -> None:
    inputs = make_inputs(case, SHAPES[shape], torch.float64)
    got = measured(case, SHAPES[shape], inputs, backend)
    for what, right in golden(case, SHAPES[shape], inputs, torch.float64).items():
        torch.testing.assert_close(got[what], right, rtol=0, atol=1e-11, msg=what)


@pytest.mark.parametrize(("backend", "case"), [answer for answer in ANSWERS if "reference" not in str(answer.id)])
def test_the_size_of_blocks_does_not_matter(backend: Backend, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES["grouped heads"]
    inputs = make_inputs(case, shape, torch.float64, growing=True)
    small = measured(case, shape, inputs, backend)
    set_block_sizes(monkeypatch, streaming_columns=17, max_rows=64)
    monkeypatch.setattr(kernel_blocks, "NARROW_COLUMNS", 999)
    large = measured(case, shape, inputs, backend)
    for what, right in small.items():
        torch.testing.assert_close(large[what], right, rtol=0, atol=1e-11, msg=what)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in NOT_FUSED], ids=lambda case: case.name)
def test_the_fused_backend_refuses_what_it_cannot_do_exactly(case: Case) -> None:
    shape = SHAPES["square"]
    with pytest.raises(UnsupportedError, match=r"backend='fused'.*use backend='streaming'"):
        measured(case, shape, make_inputs(case, shape, torch.float32), "fused")


@pytest.mark.parametrize("backend", ["fused", "streaming"])
def test_huge_scores_and_constant_rows_stay_exact(backend: Backend) -> None:
    query, key, value = (torch.randn(1, 2, 40, 8) for _ in range(3))
    key[:, :, 10:20] = key[:, :, 10:11]
    for scale in (0.0, 1e-4, 50.0, -50.0):
        truth = attend(query.double(), key.double(), value.double(), scale=scale, backend="reference")
        plain = attend(query, key, value, scale=scale, backend="reference")
        got = attend(query, key, value, mask=Full(), scale=scale, backend=backend)
        error, bound = (got - truth).abs().max(), 4 * (plain - truth).abs().max()
        assert error <= bound + 4 * torch.finfo(torch.float32).eps * truth.abs().max()
