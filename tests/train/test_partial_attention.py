"""Attention over the keys in pieces is the attention over all of them."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnscope.attention import Causal, Documents, Full, Mask, Window, from_bool, operators
from attnscope.attention.fused import empty_lse, merge_partials
from attnscope.attention.spec import make_spec, signature_of
from attnscope.train.partial_attention import Ranges, backward, forward, plan_partial
from tests.attention.cases import MASKS, SHAPES
from tests.attention.conftest import tiny_blocks  # noqa: F401 - a fixture
from tests.attention.oracle import Case, Inputs, golden, make_inputs, tier_a

BACKENDS = ["fused", "streaming"]  # every device but the CPU uses streaming
HARD_SHAPES = ("square", "grouped heads", "fewer queries", "more queries")  # with keys of growing norm
WITH_REGIONS = [case for case in MASKS if "booleans" not in case.name]


def spread(length: int, cuts: tuple[float, ...]) -> list[Ranges]:
    """A sequence cut at these shares of its length; the first and the last piece belong together, as in a zigzag."""
    edges = [0, *(int(cut * length) for cut in cuts), length]
    pieces = list(itertools.pairwise(edges))
    return [(pieces[0], pieces[-1]), *((piece,) for piece in pieces[1:-1])]


def index_of(ranges: Ranges) -> Tensor:
    return torch.cat([torch.arange(*span) for span in ranges])


def in_pieces(mask: Mask, inputs: Inputs, backend: str, scale: float | None = None) -> dict[str, Tensor]:
    """Output, lse and gradients, each row and column piece by itself."""
    query, key, value = (inputs.leaves[name].detach() for name in ("query", "key", "value"))
    spec = make_spec(signature_of(query, key, value), mask=mask, scale=scale, score_mod=None, dropout=0.0)
    region_mask = mask.to_regions(spec.sizes)
    assert region_mask is not None
    output = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=spec.compute_dtype)
    lse = empty_lse(query)
    sums = [torch.zeros(tensor.shape, dtype=spec.compute_dtype) for tensor in (query, key, value)]
    parts = [
        (plan, index_of(rows), index_of(columns))
        for rows in spread(query.shape[2], (0.2, 0.55, 0.8))
        for columns in spread(key.shape[2], (0.25, 0.5, 0.5, 0.9))
        if (plan := plan_partial(spec, region_mask, rows, columns, backend)) is not None
    ]
    for plan, at, of in parts:
        rows, rows_lse = output[:, :, at], lse[:, :, at]
        part = forward(plan, query[:, :, at], key[:, :, of], value[:, :, of])
        merge_partials(rows, rows_lse, *part, first=False)
        output[:, :, at], lse[:, :, at] = rows, rows_lse
    lse = lse.to(spec.compute_dtype)
    lse_gradient = inputs.lse_gradient.to(spec.compute_dtype)
    for plan, at, of in parts:
        tensors = (query[:, :, at], key[:, :, of], value[:, :, of])
        gradients = (inputs.output_gradient[:, :, at], lse_gradient[:, :, at])
        for total, where, gradient in zip(
            sums, (at, of, of), backward(plan, gradients, tensors, output[:, :, at], lse[:, :, at]), strict=True
        ):
            total[:, :, where] += gradient
    return dict(zip(RESULTS, (tensor.double() for tensor in (output, lse, *sums)), strict=True))


RESULTS = ("output", "lse", "gradient of query", "gradient of key", "gradient of value")


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", WITH_REGIONS, ids=lambda case: case.name)
def test_pieces_merge_to_the_whole_and_so_do_their_gradients(backend: str, case: Case) -> None:
    for name, shape in SHAPES.items():
        inputs = make_inputs(case, shape, torch.float32, growing=name in HARD_SHAPES)
        truth, plain = (golden(case, shape, inputs, dtype) for dtype in (torch.float64, torch.float32))
        assert (name, tier_a(in_pieces(case.mask(shape), inputs, backend), plain, truth)) == (name, [])


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [-0.7, 0.0, 1.3])
def test_any_scale_is_the_scale_of_the_query(backend: str, scale: float) -> None:
    case, shape = replace(MASKS[1], name="scaled"), SHAPES["narrow values"]
    inputs = make_inputs(case, shape, torch.float64)
    got = in_pieces(Causal(), inputs, backend, scale)
    factor = scale * math.sqrt(shape.dim)
    scaled = {**inputs.leaves, "query": inputs.leaves["query"].detach() * factor}
    truth = golden(case, shape, inputs._replace(leaves=scaled), torch.float64)
    truth["gradient of query"] *= factor
    for name in RESULTS:
        torch.testing.assert_close(got[name], truth[name], rtol=1e-10, atol=1e-12)


def test_half_precision_is_merged_and_summed_in_single_precision() -> None:
    shape = SHAPES["wide values"]
    inputs = make_inputs(MASKS[1], shape, torch.bfloat16)
    query, key, value = (inputs.leaves[name].detach() for name in ("query", "key", "value"))
    spec = make_spec(signature_of(query, key, value), mask=Window(9), scale=None, score_mod=None, dropout=0.0)
    region_mask = Window(9).to_regions(spec.sizes)
    everything = ((0, shape.queries),)
    for backend in BACKENDS:
        plan = plan_partial(spec, region_mask, everything, everything, backend)
        assert plan is not None
        output, lse = forward(plan, query, key, value)
        gradients = backward(plan, (inputs.output_gradient, None), (query, key, value), output, lse)
        assert {tensor.dtype for tensor in (output, lse, *gradients)} == {torch.float32}


@pytest.mark.parametrize(
    ("mask", "rows", "columns"),
    [
        (Causal(), ((0, 4),), ((4, 16),)),
        (Window(3), ((0, 2), (14, 16)), ((4, 12),)),
        (Documents([0] * 8 + [1] * 8), ((0, 8),), ((8, 16),)),
        (Full(), (), ((0, 16),)),
        (Full(), ((0, 16),), ()),
        (from_bool(attend=torch.ones(1, 16, dtype=torch.bool)), ((3, 5),), ()),
    ],
    ids=str,
)
def test_rows_that_see_none_of_the_columns_are_no_work(mask: Mask, rows: Ranges, columns: Ranges) -> None:
    query = torch.randn(1, 1, 16, 4)
    spec = make_spec(signature_of(query, query, query), mask=mask, scale=None, score_mod=None, dropout=0.0)
    region_mask = mask.to_regions(spec.sizes)
    assert region_mask is not None
    for backend in BACKENDS:
        assert plan_partial(spec, region_mask, rows, columns, backend) is None


def test_pieces_compute_no_more_cells_than_the_mask_has() -> None:
    length = 1024
    query = torch.randn(1, 1, length, 4)
    spec = make_spec(signature_of(query, query, query), mask=Causal(), scale=None, score_mod=None, dropout=0.0)
    region_mask = Causal().to_regions(spec.sizes)
    pieces = spread(length, (0.25, 0.5, 0.75))
    plans = [plan_partial(spec, region_mask, rows, columns) for rows in pieces for columns in pieces]
    assert sum(plan.cells for plan in plans if plan is not None) == length * (length + 1) // 2


def test_with_other_operators_parts_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operators.SCHEMA_MISMATCHES, "cpu", "torch 9.9 has another signature")
    query, key = torch.randn(1, 2, 30, 8), torch.randn(1, 2, 30, 8)
    scores = (query @ key.mT / math.sqrt(8)).masked_fill(~torch.ones(30, 30, dtype=torch.bool).tril(), -torch.inf)
    spec = make_spec(signature_of(query, key, key), mask=Causal(), scale=None, score_mod=None, dropout=0.0)
    region_mask = Causal().to_regions(spec.sizes)
    part = plan_partial(spec, region_mask, ((10, 30),), ((0, 20),))
    assert part is not None
    assert part.backend == "streaming"
    lse = forward(part, query[:, :, 10:], key[:, :, :20], key[:, :, :20])[1]
    torch.testing.assert_close(lse, scores[:, :, 10:, :20].logsumexp(-1))
