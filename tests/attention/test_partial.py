"""Attention over the keys in pieces is the attention over all of them."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnscope.attention import Causal, Documents, Full, Mask, Window, from_bool
from attnscope.attention.fused import merge_many, no_keys_yet
from attnscope.attention.partial import Stretches, backward, forward, plan_part
from attnscope.attention.rule import make_rule, sign
from tests.attention.cases import MASKS, SHAPES
from tests.attention.oracle import Case, Inputs, golden, make_inputs, tier_a

ENGINES = ["fused", "streaming"]  # streaming is the road of every device but the CPU; it runs here all the same
HARD_SHAPES = ("square", "grouped heads", "fewer queries", "more queries")  # with keys of growing norm
LOWERED = [case for case in MASKS if "booleans" not in case.name]


def spread(length: int, cuts: tuple[float, ...]) -> list[Stretches]:
    """A sequence cut at these shares of its length; the first and the last piece belong together, as in a zigzag."""
    edges = [0, *(int(cut * length) for cut in cuts), length]
    pieces = list(itertools.pairwise(edges))
    return [(pieces[0], pieces[-1]), *((piece,) for piece in pieces[1:-1])]


def index_of(stretches: Stretches) -> Tensor:
    return torch.cat([torch.arange(*stretch) for stretch in stretches])


def in_pieces(mask: Mask, inputs: Inputs, engine: str, scale: float | None = None) -> dict[str, Tensor]:
    """Output, lse and gradients, each row and column piece by itself."""
    query, key, value = (inputs.leaves[name].detach() for name in ("query", "key", "value"))
    rule = make_rule(sign(query, key, value), mask=mask, scale=scale, score_mod=None, dropout=0.0)
    lowered = mask.lower(rule.sizes)
    assert lowered is not None
    output = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=rule.precise)
    lse = no_keys_yet(query)
    sums = [torch.zeros(tensor.shape, dtype=rule.precise) for tensor in (query, key, value)]
    parts = [
        (plan, index_of(rows), index_of(columns))
        for rows in spread(query.shape[2], (0.2, 0.55, 0.8))
        for columns in spread(key.shape[2], (0.25, 0.5, 0.5, 0.9))
        if (plan := plan_part(rule, lowered, rows, columns, engine)) is not None
    ]
    for plan, at, of in parts:
        rows, rows_lse = output[:, :, at], lse[:, :, at]
        part = forward(plan, query[:, :, at], key[:, :, of], value[:, :, of])
        merge_many(rows, rows_lse, *part, fresh=False)
        output[:, :, at], lse[:, :, at] = rows, rows_lse
    lse = lse.to(rule.precise)
    lse_gradient = inputs.lse_gradient.to(rule.precise)
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
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", LOWERED, ids=lambda case: case.name)
def test_pieces_merge_to_the_whole_and_so_do_their_gradients(engine: str, case: Case) -> None:
    for name, shape in SHAPES.items():
        inputs = make_inputs(case, shape, torch.float32, growing=name in HARD_SHAPES)
        truth, plain = (golden(case, shape, inputs, dtype) for dtype in (torch.float64, torch.float32))
        assert (name, tier_a(in_pieces(case.mask(shape), inputs, engine), plain, truth)) == (name, [])


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scale", [-0.7, 0.0, 1.3])
def test_any_scale_is_the_scale_of_the_query(engine: str, scale: float) -> None:
    case, shape = replace(MASKS[1], name="scaled"), SHAPES["narrow values"]
    inputs = make_inputs(case, shape, torch.float64)
    got = in_pieces(Causal(), inputs, engine, scale)
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
    rule = make_rule(sign(query, key, value), mask=Window(9), scale=None, score_mod=None, dropout=0.0)
    lowered = Window(9).lower(rule.sizes)
    everything = ((0, shape.queries),)
    for engine in ENGINES:
        plan = plan_part(rule, lowered, everything, everything, engine)
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
def test_rows_that_see_none_of_the_columns_are_no_work(mask: Mask, rows: Stretches, columns: Stretches) -> None:
    query = torch.randn(1, 1, 16, 4)
    rule = make_rule(sign(query, query, query), mask=mask, scale=None, score_mod=None, dropout=0.0)
    lowered = mask.lower(rule.sizes)
    assert lowered is not None
    for engine in ENGINES:
        assert plan_part(rule, lowered, rows, columns, engine) is None


def test_pieces_compute_no_more_cells_than_the_mask_has() -> None:
    length = 1024
    query = torch.randn(1, 1, length, 4)
    rule = make_rule(sign(query, query, query), mask=Causal(), scale=None, score_mod=None, dropout=0.0)
    lowered = Causal().lower(rule.sizes)
    pieces = spread(length, (0.25, 0.5, 0.75))
    plans = [plan_part(rule, lowered, rows, columns) for rows in pieces for columns in pieces]
    assert sum(plan.cells for plan in plans if plan is not None) == length * (length + 1) // 2
