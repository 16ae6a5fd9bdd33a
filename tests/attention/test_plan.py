"""Plans: the backend that is chosen, and what `explain` prints about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.attention import (
    ALiBi,
    Causal,
    Documents,
    Full,
    Mask,
    Padding,
    Prefix,
    ScoreMod,
    Sinks,
    Softcap,
    Temperature,
    Window,
    attend,
    explain,
    from_bool,
)


def shaped(*shape: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.zeros(shape, device=device) for _ in range(3))
    return query, key, value


@pytest.mark.parametrize(
    ("mask", "calls"),
    [
        (Full(), 1),
        (Causal(), 1),
        (Causal(offset=5), 2),
        (Window(64), 2),
        (Causal() | Prefix(10), 2),
        (Causal() & Documents(torch.arange(256) // 32), 2),
        (Padding([256, 100]), 2),
        (Padding(keep=torch.arange(256).expand(2, -1) % 2 == 0), 1),
    ],
    ids=str,
)
def test_masks_with_structure_run_fused(mask: Mask, calls: int) -> None:
    plan = explain(*shaped(2, 2, 256, 16), mask=mask)
    assert plan.backend == "fused"
    assert plan.kernel_calls <= calls * 2
    assert f"{plan.kernel_calls} kernel call" in str(plan)


@pytest.mark.parametrize(
    ("score", "backend"),
    [
        (None, "fused"),
        (Temperature(0.5), "fused"),
        (Sinks(torch.zeros(2)), "fused"),
        (Softcap(30.0), "streaming"),
        (ALiBi(2), "streaming"),
        (Softcap(30.0) + Sinks(torch.zeros(2)), "streaming"),
    ],
    ids=str,
)
def test_scores_that_are_not_plain_stream(score: ScoreMod | None, backend: str) -> None:
    assert explain(*shaped(1, 2, 64, 16), score_mod=score).backend == backend


def test_other_devices_stream() -> None:
    plan = explain(*shaped(1, 2, 64, 16, device="meta"))
    assert plan.backend == "streaming"
    assert "cpu" in plan.why
    assert "meta" in plan.why


@pytest.mark.parametrize("mask", [Full(), Causal(), Causal() & Window(8), Documents(torch.arange(64) // 9)], ids=str)
@pytest.mark.parametrize("score", [None, Softcap(30.0) + ALiBi(2)], ids=str)
@pytest.mark.parametrize("backend", ["auto", "streaming", "reference"])
def test_tensors_without_values_have_an_output_without_values(mask: Mask, score: ScoreMod | None, backend: Any) -> None:
    query, key, value = (tensor.requires_grad_() for tensor in shaped(1, 2, 64, 16, device="meta"))
    output, lse = attend(query, key, value, mask=mask, score_mod=score, backend=backend, return_lse=True)
    assert (output.shape, lse.shape) == (query.shape, query.shape[:3])
    assert output.is_meta
    assert lse.is_meta
    (output.sum() + lse.sum()).backward()
    assert query.grad is not None
    assert query.grad.shape == query.shape


def test_the_reference_is_never_chosen_by_itself() -> None:
    for mask in (Full(), from_bool(attend=torch.ones(64, 64) > 0), Documents(torch.arange(64) % 2)):
        for score in (None, Softcap(1.0)):
            assert explain(*shaped(1, 2, 64, 16), mask=mask, score_mod=score).backend != "reference"
    assert explain(*shaped(1, 2, 64, 16), backend="reference").backend == "reference"


def test_cells_are_counted_exactly_where_nothing_is_rounded_up_to_blocks() -> None:
    tensors = shaped(2, 3, 100, 8)
    assert explain(*tensors).cells == 2 * 3 * 100 * 100
    assert explain(*tensors, mask=Causal()).cells == 2 * 3 * 5050
    assert explain(*tensors, mask=Padding([100, 40])).cells == 3 * 100 * 140
    assert 2 * 3 * 490 <= explain(*tensors, mask=Window(5), backend="streaming").cells < 2 * 3 * 100 * 100
    assert explain(*tensors, backend="reference").cells == 60_000


def test_the_printed_plan_says_backend_memory_and_reason() -> None:
    query, key, value = torch.empty(1, 8, 32_768, 64), *(torch.empty(1, 2, 32_768, 64) for _ in range(2))
    assert str(explain(query, key, value, mask=Window(512))).splitlines() == [
        "attention  32,768 queries x 32,768 keys, 8 heads on 2, batch 1, float32 on cpu",
        "mask       Window(512)",
        "backend    fused, 13 kernel calls (causal, dense) merged by lse",
        "scores     149,541,120 of 8,589,934,592 cells (1.74 %)",
        "memory     68.2 MB in addition to inputs and output; dense weights would take 34.4 GB",
        "why        no score modifiers, and the mask is a short list of rectangles: the fused kernel is exact",
    ]


def test_the_printed_plan_says_why_not_fused() -> None:
    text = str(explain(*shaped(1, 2, 64, 16), score_mod=Softcap(30.0), mask=Causal()))
    assert "streaming, online softmax over blocks of 64 x 64 scores per head" in text
    assert "the fused kernel does not support Softcap(cap=30.0); streaming is exact in O(n) memory" in text
