"""Statistics by the Triton kernels, on a simulated CUDA device: the right kernels with the right arguments.

Each kernel is replaced by dense fp64 code that reads and writes what the kernel would. `test_interpreted_kernels.py`
runs the kernels themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope import AttentionMatrix
from attnscope.attention import Causal, Documents, Full, Padding, Sinks, Softcap, Window, block_sizes
from attnscope.attention.operation import explain
from attnscope.attention.triton import support
from attnscope.errors import Cancelled
from attnscope.matrix.bins import Bins
from attnscope.matrix.kernel_passes import fit_to_groups
from tests.devices.standin import Standins
from tests.matrix import test_bins, test_matrix, test_summary
from tests.matrix.test_matrix import CASES, SHAPES, Subject

NO_KERNELS = ("holes", "booleans", "bias")  # several intervals of keys per query, and a score without a kernel
TOLERANCE = 2e-6
EACH_IN_A_SHAPE = [(*case, shape) for case, shape in zip(CASES, cycle(SHAPES), strict=False)]
WITH_KERNELS = [case for case in EACH_IN_A_SHAPE if not {*case} & {*NO_KERNELS}]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standins]:
    monkeypatch.setattr(support, "has_triton", lambda: True)
    with torch.no_grad(), Standins() as standins:
        yield standins


def on_cuda(subject: Subject) -> AttentionMatrix:
    return AttentionMatrix(subject.query.to("cuda"), subject.key.to("cuda"), mask=subject.mask, score_mod=subject.score)


def small_subject(mask: str = "causal", score: str = "plain", shape: str = "square") -> Subject:
    return Subject(mask, score, SHAPES[shape], torch.bfloat16)


def uses_kernels(matrix: AttentionMatrix) -> bool:
    source = matrix._source
    return source.passes is not None


@pytest.mark.parametrize(("mask", "score", "shape"), EACH_IN_A_SHAPE)
def test_kernels_are_used_where_they_can(cuda: Standins, mask: str, score: str, shape: str) -> None:
    assert uses_kernels(on_cuda(small_subject(mask, score, shape))) is ((mask, score, shape) in WITH_KERNELS)


@pytest.mark.parametrize(("mask", "score", "shape"), WITH_KERNELS)
def test_every_operation_equals_dense_fp64(cuda: Standins, mask: str, score: str, shape: str) -> None:
    subject = small_subject(mask, score, shape)
    matrix, dense = on_cuda(subject), subject.dense()
    for name, (got, right) in test_matrix.every_operation(matrix, dense, subject.allowed).items():
        assert got.device.type == "cuda", name
        torch.testing.assert_close(got.cpu().to(right), right, rtol=TOLERANCE, atol=TOLERANCE, msg=name)


@pytest.mark.parametrize(("mask", "score", "shape"), WITH_KERNELS)
def test_summary_and_bins_equal_dense_fp64(cuda: Standins, mask: str, score: str, shape: str) -> None:
    subject = small_subject(mask, score, shape)
    matrix, dense = on_cuda(subject), subject.dense()
    found = matrix.summary(test_summary.ROWS, test_summary.COLUMNS)
    right = test_summary.right(dense, subject.allowed)
    test_summary.assert_equal(on_cpu(found), as_fp32(right), TOLERANCE)
    for edges in test_bins.EDGES:
        rows, columns = test_bins.ends(edges, SHAPES[shape])
        right = test_bins.plain(dense, subject.allowed, rows, columns)
        for fresh in (matrix, on_cuda(subject)):  # with and without lse
            test_bins.assert_same(on_cpu(fresh.bins(rows, columns)), as_fp32(right), TOLERANCE, TOLERANCE)
            some = on_cpu(fresh.bins(rows, columns, marginals=False))
            assert some.entropy.shape[-1] == some.received.shape[-1] == 0
            some = as_fp32(some._replace(entropy=right.entropy, received=right.received))
            test_bins.assert_same(some, as_fp32(right), TOLERANCE, TOLERANCE)


@pytest.mark.parametrize(("mask", "score", "shape"), WITH_KERNELS)
def test_matched_weights_equal_dense_fp64(cuda: Standins, mask: str, score: str, shape: str) -> None:
    subject = small_subject(mask, score, shape)
    dense, (queries, keys) = subject.dense(), SHAPES[shape]
    pairings = test_summary.numbers(len(dense), queries, keys)
    found = on_cuda(subject).summary(3, 3, pairings=pairings)
    assert cuda.kernels["match_pass"] == cuda.kernels["match_count"] == 1
    for at, (query_ids, key_ids) in enumerate(pairings):
        same = query_ids[..., None] == key_ids[..., None, :]
        same = (same if same.dim() == 3 else same[None])[:, None]
        right = (dense * same).sum(-1).float()
        torch.testing.assert_close(found.matched_weight[:, :, at].cpu(), right, rtol=TOLERANCE, atol=TOLERANCE)
        assert torch.equal(found.num_matches[:, :, at].cpu(), (subject.allowed & same).sum(-1))


def on_cpu(found: Any) -> Any:
    return type(found)(*(one.cpu() for one in found))


def as_fp32(found: Any) -> Any:
    def convert(one: Tensor) -> Tensor:
        return one.float() if one.is_floating_point() else one

    if isinstance(found, SimpleNamespace):
        return SimpleNamespace(**{name: convert(one) for name, one in vars(found).items()})
    return Bins(*map(convert, found))


STATISTICS: dict[str, Callable[[AttentionMatrix], Tensor | tuple[Tensor, ...]]] = {
    "lse": lambda matrix: matrix.lse,
    "entropy": lambda matrix: matrix.entropy(),
    "received": lambda matrix: matrix.received(),
    "distance": lambda matrix: matrix.distance(),
    "effective keys": lambda matrix: matrix.effective_keys(),
    "max": lambda matrix: matrix.max(),
    "top key": lambda matrix: matrix.topk(1),
    "pool": lambda matrix: matrix.pool(7, 8),
    "mass": lambda matrix: matrix.pool(7, 8, "mass"),
    "largest": lambda matrix: matrix.pool(7, 8, "max"),
    "summary": lambda matrix: matrix.summary(7, 8, pairings=[(torch.arange(73) // 3, torch.arange(73) // 2)]),
    "bins": lambda matrix: matrix.bins([2, 30, 50], [0, 11, 73]),
}


def numbers(matrix: AttentionMatrix, statistic: str) -> list[Tensor]:
    found = STATISTICS[statistic](matrix)
    return [one.cpu() for one in ([found] if isinstance(found, Tensor) else found)]


@pytest.mark.parametrize(("step_cells", "score"), [(3000, "slopes"), (20_000, "softcap and sinks")])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_heads_in_steps_give_the_same(
    cuda: Standins, statistic: str, step_cells: int, score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = small_subject(score=score)
    together = numbers(on_cuda(subject), statistic)
    monkeypatch.setitem(block_sizes.SIZES, "cuda", block_sizes.GPU._replace(step_cells=step_cells))
    reports: list[float] = []
    matrix = on_cuda(subject).with_options(progress=reports.append)
    for one, other in zip(numbers(matrix, statistic), together, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert len(reports) >= 2
    assert reports == sorted(reports)
    assert reports[-1] == pytest.approx(1.0)
    with pytest.raises(Cancelled):
        numbers(on_cuda(subject).with_options(should_stop=lambda: len(reports) > 0), statistic)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_statistics_of_rows_are_computed_once_and_nothing_waits(cuda: Standins, statistic: str) -> None:
    matrix = on_cuda(small_subject())
    cuda.waits.clear()  # of the test's own copies
    STATISTICS[statistic](matrix)
    _ = matrix.lse, matrix.entropy(), matrix.max(), matrix.distance(), matrix.effective_keys(), matrix.received()
    assert cuda.kernels["row_pass"] == 1
    assert cuda.attention == {}
    assert cuda.waits == {}


def test_a_statistic_that_was_changed_in_place_is_computed_again(cuda: Standins) -> None:
    matrix = on_cuda(small_subject())
    before = matrix.entropy().clone()
    matrix.entropy().zero_()
    assert torch.equal(matrix.entropy().cpu(), before.cpu())
    assert cuda.kernels["row_pass"] == 2


def test_a_known_lse_is_used(cuda: Standins) -> None:
    subject = small_subject()
    lse, expected = on_cuda(subject).lse, on_cuda(subject).received()
    cuda.kernels.clear()
    matrix = AttentionMatrix(subject.query.to("cuda"), subject.key.to("cuda"), mask=subject.mask, lse=lse)
    torch.testing.assert_close(matrix.received().cpu(), expected.cpu(), rtol=TOLERANCE, atol=TOLERANCE)
    assert cuda.kernels == {"column_pass": 1}


def test_kept_statistics_are_counted(cuda: Standins) -> None:
    matrix = on_cuda(small_subject())
    before = matrix.nbytes
    matrix.entropy()
    planes = 2 * 4 * 73 * 4
    assert matrix.nbytes == before + 9 * planes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "Triton kernels, because each query"),
        ({"score_mod": Softcap(30.0) + Sinks(torch.zeros(4))}, "Triton kernels, because each query"),
        ({"mask": Causal() & Documents(torch.arange(73) % 2)}, "fused kernel, because the mask"),
        ({"mask": Window(9) & Padding(keep=torch.arange(73)[None] % 3 > 0)}, "fused kernel, because the mask"),
        ({"score_mod": Softcap(30.0) + Softcap(2.0)}, "streaming, because the Triton kernels do not support Softcap"),
        ({"dtype": torch.float64}, "streaming, because the Triton kernel for rows has no configuration .* 64 bits"),
        ({"device": "mps"}, "streaming, because Triton kernels run on CUDA"),
    ],
)
@pytest.mark.usefixtures("cuda")
def test_explain_says_how_statistics_are_computed(change: dict, reason: str) -> None:
    dtype, device = change.get("dtype", torch.bfloat16), change.get("device", "cuda")
    query, key = (torch.randn(1, heads, 73, 8).to(dtype).to(device) for heads in (4, 2))
    options = {"mask": change.get("mask", Full()), "score_mod": change.get("score_mod")}
    plan = explain(query, key, key, **options)
    assert re.match(reason, plan.statistics)
    assert f"statistics {plan.statistics}" in str(plan)
    assert uses_kernels(AttentionMatrix(query, key, **options)) is plan.statistics.startswith("Triton")


def test_without_triton_the_operators_of_torch_compute_everything(
    cuda: Standins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "has_triton", lambda: False)
    subject = small_subject()
    matrix = on_cuda(subject)
    torch.testing.assert_close(matrix.received().cpu().double(), subject.dense().sum(-2), rtol=1e-5, atol=1e-5)
    assert cuda.kernels == {}
    assert set(cuda.attention) == {"_scaled_dot_product_efficient_attention"}
    plan = explain(subject.query.to("cuda"), subject.key.to("cuda"), subject.key.to("cuda"))
    assert 'attnscope[triton]"' in plan.statistics


@pytest.mark.parametrize(
    ("capability", "hip", "name", "architecture"),
    [((8, 6), None, "", "sm_80"), ((9, 0), None, "", "sm_90"), ((9, 4), "7.0", "gfx942:sramecc+", "gfx942")],
)
def test_the_architecture_is_that_of_the_device(
    capability: tuple[int, int], hip: str | None, name: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName=name))
    assert support.architecture_of(torch.device("cuda", 0)) == architecture


def test_ranges_of_heads_never_cross_the_heads_of_a_key() -> None:
    for group in (1, 2, 3, 4, 6, 8):
        for size in range(1, 20):
            step = fit_to_groups(size, group)
            assert 1 <= step <= size
            assert step % group == 0 or group % step == 0
