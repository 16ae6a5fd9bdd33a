"""What holds on every backend, with no tolerance: who influences whom, empty rows, alignment, head order, lse."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnscope.attention import (
    Bias,
    Causal,
    Documents,
    Full,
    Mask,
    Padding,
    ScoreMod,
    Sinks,
    Softcap,
    Temperature,
    Window,
    attend,
    explain,
    from_bool,
)
from attnscope.attention.algebra import Sizes
from attnscope.attention.operation import Backend
from attnscope.errors import ShapeError, UnsupportedError
from tests.attention.cases import MASKS, SHAPES, answers
from tests.attention.oracle import Case, Shape, allowed

BACKENDS: tuple[Backend, ...] = ("reference", "fused", "streaming")
ANSWERS = answers(MASKS)
SQUARE, FEW, MANY = SHAPES["grouped heads"], SHAPES["fewer queries"], SHAPES["more queries"]


@pytest.fixture(autouse=True, params=["tiny blocks", "real blocks"])
def blocks(request: pytest.FixtureRequest) -> None:
    if request.param == "tiny blocks":
        request.getfixturevalue("tiny_blocks")


def tensors(shape: Shape, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Small scores, so that no weight underflows."""
    query = 0.1 * torch.randn(shape.batch, shape.heads, shape.queries, shape.dim)
    key = 0.1 * torch.randn(shape.batch, shape.key_heads, shape.keys, shape.dim)
    value = torch.randn(shape.batch, shape.key_heads, shape.keys, shape.value_dim)
    return query.to(dtype), key.to(dtype), value.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("shape", [SQUARE, FEW, MANY], ids=["square", "fewer queries", "more queries"])
@pytest.mark.parametrize(("backend", "case"), ANSWERS)
def test_a_key_has_influence_exactly_where_the_mask_allows(
    backend: Backend, case: Case, shape: Shape, dtype: torch.dtype
) -> None:
    query, key, _ = tensors(shape, dtype)
    value = torch.eye(shape.keys, dtype=dtype).expand(shape.batch, shape.key_heads, -1, -1).clone().requires_grad_()
    query.requires_grad_()
    expected = allowed(case, shape).expand(-1, shape.heads, -1, -1)

    weights = attend(query, key, value, mask=case.mask(shape), backend=backend)  # values of one token each: the matrix
    assert torch.equal(weights > 0, expected)
    assert torch.equal(weights == 0, ~expected)

    weights.backward(torch.eye(shape.queries, shape.keys, dtype=dtype).expand_as(weights))
    assert value.grad is not None
    # Row i of the gradient from above is unit vector i, so column i of a value's gradient is its weight for query i.
    seen = expected.unflatten(1, (shape.key_heads, -1)).any(2).mT[..., : min(shape.queries, shape.keys)]
    assert torch.equal(value.grad[..., : seen.shape[-1]] > 0, seen)
    assert (value.grad[..., seen.shape[-1] :] == 0).all()


@pytest.mark.parametrize(("backend", "case"), ANSWERS)
def test_a_changed_key_changes_exactly_the_rows_that_see_it(backend: Backend, case: Case) -> None:
    query, key, value = tensors(SQUARE)
    before = attend(query, key, value, mask=case.mask(SQUARE), backend=backend)
    sees = allowed(case, SQUARE)
    for j in (0, 1, 7, 8, 20, SQUARE.keys - 1):
        moved = key.clone()
        moved[:, :, j] += 1.0
        after = attend(query, moved, value, mask=case.mask(SQUARE), backend=backend)
        changed = (after != before).any(-1)
        alone = sees.sum(-1) == 1  # the only key of a row keeps weight 1, whatever its score
        assert torch.equal(changed, (sees[..., j] & ~alone).expand_as(changed))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "mask",
    [
        Causal() & Padding(keep=torch.arange(41)[None] >= torch.tensor([[6], [0]])),
        Causal(offset=-6),
        Padding([0, 41]),
        Causal() & Documents(torch.arange(41) // 5) & Padding([7, 41]),
        Window(3) & Padding(keep=(torch.arange(41) % 9 > 4).expand(2, -1)),
        Causal() & Padding(keep=((torch.arange(41) % 3 == 1) & (torch.arange(41) > 9)).expand(2, -1)),
    ],
    ids=str,
)
def test_a_row_without_keys_gives_zero_and_minus_infinity(mask: Mask, backend: Backend, dtype: torch.dtype) -> None:
    query, key, value = (tensor.requires_grad_() for tensor in tensors(SQUARE, dtype))
    output, lse = attend(query, key, value, mask=mask, backend=backend, return_lse=True)
    sizes = Sizes(SQUARE.batch, SQUARE.heads, SQUARE.queries, SQUARE.keys)
    seen = mask.to_dense(sizes).expand(SQUARE.batch, -1, -1, -1)
    empty = ~seen.any(-1).expand(lse.shape)
    assert empty.any()
    assert not empty.all()
    assert (output[empty] == 0).all()
    assert (lse[empty] == -math.inf).all()
    assert lse[~empty].isfinite().all()

    output.sum().backward()
    assert query.grad is not None
    assert key.grad is not None
    assert value.grad is not None
    assert (query.grad[empty] == 0).all()
    unseen = ~seen.any(-2).expand(-1, SQUARE.key_heads, -1)
    assert (key.grad[unseen] == 0).all()
    assert (value.grad[unseen] == 0).all()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in (query, key, value))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_without_keys_keeps_that_contract_with_sinks(backend: Backend) -> None:
    query, key, value = tensors(SQUARE)
    sinks = torch.randn(SQUARE.heads, requires_grad=True)
    output, lse = attend(
        query, key, value, mask=Causal(offset=-6), score_mod=Sinks(sinks), backend=backend, return_lse=True
    )
    assert (output[:, :, :6] == 0).all()
    assert (lse[:, :, :6] == -math.inf).all()
    (output[:, :, :6].sum() + output[:, :, 6:].sum()).backward()
    assert sinks.grad is not None
    assert sinks.grad.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_keys_and_no_queries_are_legal(backend: Backend) -> None:
    query, nothing = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 0, 8)
    output, lse = attend(query, nothing, nothing, backend=backend, return_lse=True)
    assert (output == 0).all()
    assert (lse == -math.inf).all()
    assert attend(nothing, query, query, mask=Causal(), backend=backend).shape == (1, 2, 0, 8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_query_head_h_reads_key_head_h_over_group(backend: Backend) -> None:
    query, key = torch.randn(1, 6, 9, 4), torch.randn(1, 2, 9, 4)
    value = torch.stack([torch.zeros(9, 4), torch.ones(9, 4)])[None]
    output = attend(query, key, value, backend=backend)
    torch.testing.assert_close(output[0, :, 0, 0], torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]))


@pytest.mark.parametrize("mask", [Causal(), Window(6), Causal() & ~Window(3)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_decoding_and_chunked_prefill_equal_the_full_pass(backend: Backend, mask: Mask) -> None:
    query, key, value = (torch.randn(2, 4, 30, 8, dtype=torch.float64) for _ in range(3))
    whole = attend(query, key, value, mask=mask, backend=backend)
    for pieces in ([1] * 30, [7, 7, 7, 9], [29, 1]):
        seen, parts = 0, []
        for length in pieces:
            stop = seen + length
            parts.append(
                attend(query[:, :, seen:stop], key[:, :, :stop], value[:, :, :stop], mask=mask, backend=backend)
            )
            seen = stop
        torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_static_cache_needs_only_offsets(backend: Backend) -> None:
    query = torch.randn(2, 2, 1, 8)
    cache = torch.randn(2, 2, 16, 8)
    filled = torch.tensor([4, 11])
    output = attend(query, cache, cache, mask=Causal(offset=filled - 1), backend=backend)
    for row, length in enumerate(filled.tolist()):
        alone = attend(query[row : row + 1], *(2 * [cache[row : row + 1, :, :length]]), backend="reference")
        torch.testing.assert_close(output[row : row + 1], alone)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lse_is_the_natural_logarithm_in_fp32_or_better(backend: Backend) -> None:
    for dtype, precise in (
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        ones = torch.ones(1, 1, 10, 4, dtype=dtype)
        _, lse = attend(ones, ones, ones, scale=0.5, backend=backend, return_lse=True)
        assert lse.dtype == precise
        torch.testing.assert_close(lse, torch.full_like(lse, 2.0 + math.log(10)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_temperature_is_a_divisor_of_the_scale(backend: Backend) -> None:
    query, key, value = tensors(SQUARE)
    cooled = attend(query, key, value, score_mod=Temperature(0.25), backend=backend)
    torch.testing.assert_close(cooled, attend(query, key, value, scale=4 / math.sqrt(SQUARE.dim), backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts_and_leading_axes_do_not_matter(backend: Backend) -> None:
    query, key, value = (torch.randn(2, 3, 4, 20, 8) for _ in range(3))
    whole = attend(query, key, value, mask=Causal(), backend=backend)
    assert whole.shape == (2, 3, 4, 20, 8)
    one = attend(query[1, 2, 3], key[1, 2, 3], value[1, 2, 3], mask=Causal(), backend=backend)
    torch.testing.assert_close(one, whole[1, 2, 3])
    three = attend(query[1, 2], key[1, 2], value[1, 2], mask=Causal(), backend=backend)
    torch.testing.assert_close(three, whole[1, 2])
    interleaved = (tensor[1].transpose(1, 2).contiguous().transpose(1, 2) for tensor in (query, key, value))
    torch.testing.assert_close(attend(*interleaved, mask=Causal(), backend=backend), whole[1])
    columns = (tensor[1].mT.contiguous().mT for tensor in (query, key, value))
    torch.testing.assert_close(attend(*columns, mask=Causal(), backend=backend), whole[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_row_does_not_depend_on_its_company(backend: Backend) -> None:
    query, key, value = tensors(SQUARE)
    mask = Causal() & Padding([30, 41])
    together = attend(query, key, value, mask=mask, backend=backend)
    alone = attend(query[1:], key[1:], value[1:], mask=Causal(), backend=backend)
    torch.testing.assert_close(together[1:], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_arrive_expanded_are_taken(backend: Backend) -> None:
    query, key, value = (tensor.requires_grad_() for tensor in tensors(SQUARE))
    attend(query, key, value, mask=Window(5), backend=backend).sum().backward()
    assert value.grad is not None
    assert value.grad.isfinite().all()


@pytest.mark.parametrize(
    ("backend", "mask"),
    [(backend, mask) for backend in BACKENDS for mask in (Causal(), Window(3))]
    + [(backend, from_bool(attend=torch.ones(7, 7).tril().bool())) for backend in ("reference", "streaming")],
    ids=str,
)
def test_gradcheck_in_fp64(backend: Backend, mask: Mask) -> None:
    query = torch.randn(1, 4, 7, 3, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(1, 2, 7, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def operation(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
        return attend(query, key, value, mask=mask, score_mod=Sinks(sinks), backend=backend, return_lse=True)

    assert torch.autograd.gradcheck(operation, (query, key, value, sinks))
    if backend == "reference":
        assert torch.autograd.gradgradcheck(operation, (query, key, value, sinks))


@pytest.mark.parametrize("backend", ["fused", "streaming"])
def test_second_order_gradients_are_refused_by_name(backend: Backend) -> None:
    query = torch.randn(1, 1, 6, 4, requires_grad=True)
    output = attend(query, query, query, backend=backend)
    (gradient,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
    with pytest.raises(UnsupportedError, match=f"{backend} backend.*second-order.*'reference'"):
        gradient.sum().backward()


@pytest.mark.parametrize("scale", [0.0, -0.5])
@pytest.mark.parametrize("mask", [Causal(), Window(4), Causal() & Padding([30, 41])], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scale_may_be_zero_or_negative(backend: Backend, mask: Mask, scale: float) -> None:
    query, key, value = (tensor.double().requires_grad_() for tensor in tensors(SQUARE))
    output, lse = attend(query, key, value, mask=mask, scale=scale, backend=backend, return_lse=True)
    expected, expected_lse = attend(-query, key, value, mask=mask, scale=-scale, backend="reference", return_lse=True)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(lse, expected_lse)
    (gradient,) = torch.autograd.grad(output.square().sum(), query)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("backend", ["reference", "streaming"])
def test_the_layout_of_a_bias_does_not_matter_to_its_gradient(backend: Backend) -> None:
    query, key, value = tensors(SQUARE)
    gradients = []
    for turned in (False, True):
        bias = torch.linspace(-1, 1, 41 * 41).reshape(41, 41).requires_grad_()
        score = Bias((bias.mT if turned else bias.mT.contiguous())[None])
        output = attend(query, key, value, score_mod=score, backend=backend)
        (output * torch.arange(float(SQUARE.value_dim))).sum().backward()
        gradients.append(bias.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().max() > 0.1


@pytest.mark.parametrize("backend", ["reference", "streaming"])
def test_gradients_of_a_shared_bf16_bias_are_summed_in_fp32(backend: Backend) -> None:
    ones = torch.ones(1, 1, 400, 8, dtype=torch.bfloat16)
    bias = torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    table = torch.zeros(8, 1, dtype=torch.bfloat16, requires_grad=True)
    for score in (Bias(bias), Bias.t5(table, bidirectional=True)):
        attend(ones, ones, ones, score_mod=score, backend=backend, return_lse=True)[1].sum().backward()
    assert bias.grad is not None
    assert table.grad is not None
    assert bias.grad.item() == 400
    torch.testing.assert_close(table.grad.float().sum(), torch.tensor(400.0), rtol=0.01, atol=0)


@pytest.mark.parametrize("score", [None, Softcap(5.0)], ids=["plain", "softcap"])
def test_autocast_casts_the_inputs_and_nothing_inside(score: ScoreMod | None) -> None:
    """The result is that of bf16 inputs: scores, sums and lse stay in fp32."""

    def run(*inputs: Tensor) -> list[Tensor]:
        output, lse = attend(*inputs, mask=Causal(), score_mod=score, return_lse=True)
        (output.sum() + lse.sum()).backward()
        return [output, lse]

    given = [tensor.requires_grad_() for tensor in tensors(SQUARE)]
    cast = [tensor.detach().bfloat16().requires_grad_() for tensor in given]
    right = run(*cast)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(*given)
    assert [tensor.dtype for tensor in found] == [torch.bfloat16, torch.float32]
    for got, expected in zip(found, right, strict=True):
        assert torch.equal(got, expected)
    for one, other in zip(given, cast, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert one.grad.dtype == torch.float32
        assert torch.equal(one.grad, other.grad.float())


@pytest.mark.parametrize("dtypes", [("float32", "float32", "bfloat16"), ("float16", "bfloat16", "float32")], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_takes_mixed_dtypes_as_torch_does(backend: Backend, dtypes: tuple[str, ...]) -> None:
    query, key, value = (tensor.to(getattr(torch, name)) for tensor, name in zip(tensors(SQUARE), dtypes, strict=True))
    with pytest.raises(ShapeError, match="one floating dtype"):
        attend(query, key, value)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = attend(query, key, value, backend=backend)
        right = torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        assert explain(query, key, value).spec.signature.dtype == torch.bfloat16
    assert output.dtype == right.dtype == torch.bfloat16
    torch.testing.assert_close(output, right, rtol=0.02, atol=0.01)


def test_autocast_leaves_fp64_as_it_is() -> None:
    query, key, value = tensors(SQUARE, torch.float64)
    plain = attend(query, key, value)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attend(query, key, value), plain)


def test_no_mask_is_a_full_one() -> None:
    query, key, value = tensors(SQUARE)
    assert torch.equal(attend(query, key, value, mask=None), attend(query, key, value, mask=Full()))
    assert explain(query, key, value, mask=None).spec.mask == Full()


def test_ids_and_kept_keys_are_copied() -> None:
    query, key, value = tensors(SQUARE)
    ids, keep = torch.zeros(41, dtype=torch.long), torch.ones(2, 41, dtype=torch.bool)
    for mask, tensor in ((Documents(ids), ids), (Padding(keep=keep), keep)):
        before = attend(query, key, value, mask=mask)
        tensor[..., 20:] = ~tensor[..., 20:] if tensor.dtype == torch.bool else 1
        for backend in BACKENDS:
            torch.testing.assert_close(attend(query, key, value, mask=mask, backend=backend), before)


def test_a_scale_that_is_a_tensor_is_refused() -> None:
    query, key, value = tensors(SQUARE)
    with pytest.raises(TypeError, match=r"scale.*number, got Tensor.*multiply the query"):
        attend(query, key, value, scale=torch.tensor(1.0))  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_a_leading_axis_may_be_empty() -> None:
    nothing = torch.zeros(2, 0, 4, 5, 8)
    assert attend(nothing, nothing, nothing, mask=Causal()).shape == (2, 0, 4, 5, 8)
