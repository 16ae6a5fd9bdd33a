"""`attend` on CUDA, by a device that computes on the CPU and takes and returns what the CUDA operators do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from attnscope.attention import (
    ALiBi,
    Causal,
    Documents,
    Full,
    Padding,
    Softcap,
    Window,
    attend,
    explain,
    fused,
    operators,
)
from attnscope.attention.operation import _cached_plan
from attnscope.attention.plan import Plan
from tests.attention.cases import CASES, MASKS, NOT_FUSED
from tests.attention.oracle import Case, Inputs, Shape, golden, make_inputs, tier_a, tier_b
from tests.devices.fake_cuda import count_work, fake_cuda
from tests.devices.standin import Standins

SHAPES = {
    "grouped heads": Shape(2, 6, 2, 41, 41, 8, 8),
    "odd head dim": Shape(2, 4, 2, 37, 37, 6, 6),
    "fewer queries": Shape(2, 2, 2, 13, 43, 8, 8),
    "more queries": Shape(2, 2, 1, 43, 13, 8, 8),
    "one query": Shape(2, 4, 2, 1, 31, 8, 8),
    "wide values": Shape(1, 2, 2, 33, 33, 8, 12),
}
OFTEN = {"full", "causal", "window", "padding", "causal with scattered keys"}
EFFICIENT, FLASH = "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention"


def attend_on_cuda(
    case: Case, shape: Shape, inputs: Inputs, *, gradients: bool = False
) -> tuple[dict[str, Tensor], Plan]:
    """Output and lse and, of the fused backend, gradients; the engine of autograd needs a driver."""
    moved = {name: leaf.detach().to("cuda") for name, leaf in inputs.leaves.items()}
    query, key, value = (moved[name] for name in ("query", "key", "value"))
    mask, score = case.mask(shape), None if case.score is None else case.score(moved)
    plan = explain(query, key, value, mask=mask, score_mod=score)
    output, lse = attend(query, key, value, mask=mask, score_mod=score, return_lse=True)
    assert output.device == lse.device == torch.device("cuda", 0)
    assert output.dtype == query.dtype
    found = {"output": output.cpu(), "lse": lse.cpu()}
    if gradients:
        assert plan.fused_plan is not None
        above = inputs.output_gradient.to("cuda"), inputs.lse_gradient.to(lse.cpu()).to("cuda")
        found |= backward_on_cuda(plan.fused_plan, (query, key, value), above)
    return {name: tensor.double() for name, tensor in found.items()}, plan


def backward_on_cuda(
    plan: fused.FusedPlan, tensors: tuple[Tensor, ...], above: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """Gradients as autograd would ask for them; it also cuts those of padded head dims."""
    plan, query, key, value = fused.fit_to_kernel(plan, *tensors)
    output, lse = fused.forward(plan, query, key, value)
    saved = fused.SavedTensors(query, key, value, output.to(query.dtype), lse)
    grad = torch.nn.functional.pad(above[0], (0, value.shape[-1] - above[0].shape[-1]))
    found = fused.backward(plan, saved, grad, above[1])
    names = ("query", "key", "value")
    return {
        f"gradient of {name}": one[..., : tensor.shape[-1]].cpu()
        for name, one, tensor in zip(names, found, tensors, strict=True)
    }


@pytest.fixture(autouse=True)
def new_plans() -> Iterator[None]:
    """Plans depend on the operators of a device, which tests change."""
    _cached_plan.cache_clear()
    yield
    _cached_plan.cache_clear()


@pytest.fixture
def cuda() -> Iterator[None]:
    with torch.no_grad(), Standins():
        yield


GRID = [(case, "grouped heads") for case in CASES]
GRID += [(case, shape) for case in MASKS if case.name in OFTEN for shape in SHAPES if shape != "grouped heads"]


@pytest.mark.parametrize(("case", "shape"), [pytest.param(*one, id=f"{one[0].name}, {one[1]}") for one in GRID])
def test_fp32_on_cuda_is_as_exact_as_on_the_cpu(case: Case, shape: str) -> None:
    inputs = make_inputs(case, SHAPES[shape], torch.float32, growing=True)
    has_gradients = case.name not in NOT_FUSED | {"sinks"}
    with torch.no_grad(), Standins() as standins:
        found, plan = attend_on_cuda(case, SHAPES[shape], inputs, gradients=has_gradients)
    assert plan.backend == ("streaming" if case.name in NOT_FUSED else "fused")
    assert set(standins.attention) <= {EFFICIENT, f"{EFFICIENT}_backward"}
    truth, plain = (golden(case, SHAPES[shape], inputs, dtype) for dtype in (torch.float64, torch.float32))
    truth, plain = ({name: one[name] for name in found} for one in (truth, plain))
    assert tier_a(found, plain, truth) == []


@pytest.mark.parametrize("shape", [SHAPES["grouped heads"], SHAPES["more queries"]], ids=["square", "more queries"])
@pytest.mark.parametrize("case", MASKS, ids=lambda case: case.name)
def test_bf16_on_cuda_is_as_exact_as_on_the_cpu(case: Case, shape: Shape) -> None:
    inputs = make_inputs(case, shape, torch.bfloat16)
    with torch.no_grad(), Standins():
        found, _ = attend_on_cuda(case, shape, inputs, gradients=case.name not in NOT_FUSED)
    truth, plain = (golden(case, shape, inputs, dtype) for dtype in (torch.float64, torch.bfloat16))
    truth, plain = ({name: one[name] for name in found} for one in (truth, plain))
    assert tier_b(found, plain, truth, torch.bfloat16) == []


def tensors(*shape: int, dtype: torch.dtype = torch.float32, key_heads: int | None = None) -> tuple[Tensor, ...]:
    batch, heads, length, dim = shape
    query = torch.randn(batch, heads, length, dim).to(dtype)
    key, value = (torch.randn(batch, key_heads or heads, length, dim).to(dtype) for _ in range(2))
    return query.to("cuda"), key.to("cuda"), value.to("cuda")


@pytest.mark.parametrize(
    ("dtype", "dim", "mask", "operator"),
    [
        (torch.bfloat16, 64, Causal(), FLASH),
        (torch.float16, 64, Full(), FLASH),
        (torch.bfloat16, 320, Causal(), EFFICIENT),  # flash attention ends at 256
        (torch.bfloat16, 64, Window(8), EFFICIENT),  # a bias
        (torch.bfloat16, 64, Causal(offset=3), EFFICIENT),  # not from a corner
        (torch.float32, 64, Causal(), EFFICIENT),
    ],
)
@pytest.mark.usefixtures("cuda")
def test_the_operator_depends_on_dtype_head_dim_and_mask(dtype, dim: int, mask, operator: str) -> None:
    query, key, value = tensors(1, 4, 40, dim, dtype=dtype, key_heads=2)
    with Standins() as standins:
        attend(query, key, value, mask=mask)
    assert operator in standins.attention
    plan = explain(query, key, value, mask=mask)
    title = {FLASH: operators.FLASH.title, EFFICIENT: operators.EFFICIENT.title}[operator]
    assert plan.backend == "fused"
    assert title in plan.why


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda q: {"query": q.double(), "key": q.double(), "value": q.double()}, "float64 on cuda"),
        (lambda q: {"score_mod": Softcap(30.0)}, "Softcap"),
        (lambda q: {"score_mod": ALiBi(4)}, "ALiBi"),
        (lambda q: {"dropout": 0.1}, "dropout on cuda"),
        (lambda q: {"mask": Documents(torch.arange(40) % 2)}, ""),
    ],
)
@pytest.mark.usefixtures("cuda")
def test_explain_says_why_a_call_streams(change: Callable[[Tensor], dict], reason: str) -> None:
    query, key, value = tensors(1, 4, 40, 16)
    plan = explain(**({"query": query, "key": key, "value": value, "mask": Causal()} | change(query)))
    assert reason in plan.why
    assert plan.backend == ("streaming" if reason else "fused")


@pytest.mark.usefixtures("cuda")
def test_lse_of_a_row_without_keys_is_minus_infinity() -> None:
    query, key, value = tensors(1, 2, 40, 8)
    keep = torch.arange(40)[None] >= 9
    for place in ("cpu", "cuda"):
        mask = Causal() & Padding(keep=keep.to(place))
        output, lse = attend(query, key, value, mask=mask, return_lse=True)
        assert explain(query, key, value, mask=mask).backend == "fused"
        assert (lse.cpu()[..., :9] == -math.inf).all()
        assert (output.cpu()[:, :, :9] == 0).all()
        assert lse.cpu()[..., 9:].isfinite().all()


def test_amd_gpus_have_no_padding_after_lse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    device = torch.device("cuda", 0)
    assert operators.platform_of(device) == "rocm"
    operator = operators.find_operator(device, torch.float32, 64)
    assert operator is not None
    assert operator.lse_rows == 1


@pytest.mark.parametrize(("capability", "streams"), [((7, 5), True), ((8, 0), False), ((12, 0), False)])
def test_old_gpus_have_no_bf16(capability: tuple[int, int], streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cuda", 0)
    half = operators.find_operator(device, torch.float16, 64)
    assert half is (operators.EFFICIENT if streams else operators.FLASH)
    assert (operators.find_operator(device, torch.bfloat16, 64) is None) is streams
    reason = operators.why_not_dtype(operators.EFFICIENT, device, torch.bfloat16)
    assert (reason is not None and "compute capability 8.0" in reason) is streams


@pytest.mark.parametrize("is_built", [True, False])
def test_a_build_without_flash_attention_uses_the_other_operator(
    is_built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: is_built)
    found = operators.find_operator(torch.device("cuda", 0), torch.bfloat16, 64)
    assert found is (operators.FLASH if is_built else operators.EFFICIENT)


def test_the_last_operator_of_a_platform_takes_all_that_the_others_take() -> None:
    for found in operators.OPERATORS.values():
        last = found[-1]
        assert len(last.schemas) == 2
        assert last.takes_bias
        assert last.max_head_dim is None
        assert not last.lower_right
        for one in found:
            assert one.dtypes <= last.dtypes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_have_the_layout_of_their_inputs(dtype: torch.dtype) -> None:
    with fake_cuda():
        shapes = (1, 8, 300, 64), (1, 2, 300, 64), (1, 2, 300, 64)
        query, key, value = given = [torch.empty(shape, device="cuda", dtype=dtype) for shape in shapes]
        plan = explain(query, key, value, mask=Causal()).fused_plan
        assert plan is not None
        lse = torch.empty(1, 8, 300, device="cuda")
        saved = fused.SavedTensors(query, key, value, torch.empty_like(query), lse)
        found, work = count_work(lambda: fused.backward(plan, saved, torch.empty_like(query), None))
        assert [(one.shape, one.dtype, str(one.device)) for one in found] == [
            (one.shape, dtype, "cuda:0") for one in given
        ]
        assert work.attention == {f"{EFFICIENT}_backward": 1}
        assert work.waits.total() == 0
        (_, arguments, _), *_ = work.attention_calls
        grad, query, key, value, bias, output, given_lse = arguments[:7]
        assert given_lse.shape == (1, 8, 320)
        assert key.shape == value.shape == query.shape
        assert bias is None
        assert output.stride() == grad.stride() == (8 * 300 * 64, 64, 8 * 64, 1)
