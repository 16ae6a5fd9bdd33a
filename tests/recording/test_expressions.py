"""Masks and scores survive the way through JSON and tensors, whatever they are made of; what is made up is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnscope.attention import (
    ALiBi,
    Bias,
    Causal,
    Documents,
    Full,
    Mask,
    Padding,
    Prefix,
    Sinks,
    Softcap,
    Temperature,
    Window,
    from_bool,
)
from attnscope.attention.algebra import Sizes
from attnscope.attention.scores import Cells, ScoreChain, ScoreMod, ScoreStep
from attnscope.errors import TraceError, UnsupportedError
from attnscope.recording.files.expressions import ExpressionReader, ExpressionWriter, tensor_names
from attnscope.recording.layers.step_masks import StackedMask
from attnscope.recording.layers.step_masks import Step as Rows
from tests.attention.cases import CASES, SHAPES
from tests.attention.oracle import Case, Shape

SIZES = Sizes(2, 4, 7, 9)


def again(expressions: ExpressionWriter) -> ExpressionReader:
    """What is read from the text of what was written."""
    nodes = json.loads(json.dumps(expressions.nodes, allow_nan=False))
    assert set(tensor_names(nodes)) == set(expressions.tensors)
    return ExpressionReader(nodes, expressions.tensors, "trace.json")


def mask_again(mask: Mask) -> Mask:
    expressions = ExpressionWriter()
    place = expressions.mask(mask)
    return again(expressions).mask(place)


def score_again(score: ScoreMod) -> ScoreMod:
    expressions = ExpressionWriter()
    place = expressions.score(score)
    return again(expressions).score(place)


def changed(score: ScoreMod, scores: Tensor, sizes: Sizes) -> tuple[Tensor, list[Tensor]]:
    """Scores after all steps, and the sinks."""
    cells = Cells(torch.arange(sizes.queries)[:, None], torch.arange(sizes.keys)[None, :], sizes)
    for part in score.parts:
        scores = part.apply(scores, cells) if isinstance(part, ScoreStep) else scores
    return scores, [part.logits for part in score.parts if isinstance(part, Sinks)]


def booleans(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) > 0.4


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


seeds = st.integers(0, 1000)
offsets = st.none() | st.integers(-9, 9) | st.lists(st.integers(-9, 9), min_size=2, max_size=2)


def masks_of(queries: int, keys: int) -> st.SearchStrategy[Mask]:
    """Any combination of masks that hold no tensors, or tensors for two batch rows, four heads and these sizes."""
    shapes = st.sampled_from(
        [(queries, keys), (2, 1, queries, keys), (1, 4, 1, keys), (2, 1, queries, 1), (4, queries, keys)]
    )
    plain = st.one_of(
        st.just(Full()),
        st.builds(Causal, offsets),
        st.builds(
            lambda before, after, offset: Window(before=before, after=after, offset=offset), seeds, seeds, offsets
        ),
        st.builds(lambda width: Window(width), st.integers(1, 2**40)),
        st.builds(Prefix, st.integers(0, 9) | st.lists(st.integers(0, 9), min_size=2, max_size=2)),
        st.builds(Padding, st.lists(st.integers(0, keys), min_size=2, max_size=2)),
        st.builds(lambda seed: Padding(keep=booleans(seed, 2, keys)), seeds),
        st.builds(lambda seed, shape: from_bool(attend=booleans(seed, *shape)), seeds, shapes),
        st.builds(lambda seed: Documents(booleans(seed, keys).long(), booleans(seed, queries).long()), seeds),
        st.builds(lambda seed: Documents(booleans(seed, 2, keys), booleans(seed, 2, queries)), seeds),
    )
    return st.recursive(
        plain,
        lambda inner: st.one_of(
            st.builds(lambda one, two: one & two, inner, inner),
            st.builds(lambda one, two: one | two, inner, inner),
            st.builds(lambda one: ~one, inner),
        ),
        max_leaves=6,
    )


def stacks() -> st.SearchStrategy[Mask]:
    """Two steps, of 3 rows over the first 5 columns and of the other 4 over all but one."""
    return st.builds(
        lambda one, two: StackedMask((Rows(one, 0, 3, 0, 5), Rows(two, 3, 7, 1, 9))), masks_of(3, 5), masks_of(4, 8)
    )


scores = st.lists(
    st.one_of(
        st.builds(Softcap, st.floats(1e-3, 1e3)),
        st.builds(Temperature, st.integers(1, 9) | st.floats(1e-3, 1e3)),
        st.builds(lambda seed, offset: ALiBi(normal(seed, 4), offset=offset), seeds, st.none() | st.integers(-5, 5)),
        st.builds(
            lambda seed, shape: Bias(normal(seed, *shape)),
            seeds,
            st.sampled_from([(7, 9), (4, 7, 9), (2, 1, 1, 9), (1, 4, 7, 1)]),
        ),
        st.builds(
            lambda seed, both, offset: Bias.t5(normal(seed, 8, 4), bidirectional=both, max_distance=20, offset=offset),
            seeds,
            st.booleans(),
            st.none() | st.integers(-5, 5),
        ),
        st.builds(lambda seed: Bias.by_distance(normal(seed, 4, 40), first=-20), seeds),
        st.builds(lambda seed: Sinks(normal(seed, 4)), seeds),
    ),
    min_size=1,
    max_size=5,
)


@given(masks_of(SIZES.queries, SIZES.keys) | stacks())
@settings(max_examples=200)
def test_any_mask_comes_back(mask: Mask) -> None:
    assert torch.equal(mask_again(mask).to_dense(SIZES), mask.to_dense(SIZES))


@given(scores)
@settings(max_examples=150)
def test_any_score_comes_back(parts: list[ScoreMod]) -> None:
    score = sum(parts[1:], start=parts[0])
    found = score_again(score)
    assert [type(part) for part in found.parts] == [type(part) for part in score.parts]
    before = normal(0, *SIZES)
    ours, sinks = changed(found, before, SIZES)
    theirs, expected_sinks = changed(score, before, SIZES)
    assert torch.equal(ours, theirs)
    assert all(map(torch.equal, sinks, expected_sinks))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("shape", [SHAPES["square"], SHAPES["fewer queries"]], ids=["square", "fewer queries"])
def test_the_cases_of_attention_come_back(case: Case, shape: Shape) -> None:
    sizes = Sizes(shape.batch, shape.heads, shape.queries, shape.keys)
    mask = case.mask(shape)
    assert torch.equal(mask_again(mask).to_dense(sizes), mask.to_dense(sizes))
    if case.score is not None:
        score = case.score({name: make(shape) for name, make in case.parameters.items()})
        before = torch.randn(*sizes, dtype=torch.float64)
        assert torch.equal(changed(score_again(score), before, sizes)[0], changed(score, before, sizes)[0])


def test_what_layers_share_stands_there_once_and_is_one_object_again() -> None:
    padding, table = Padding(keep=booleans(1, 2, 9)), booleans(2, 7, 9)
    bias = Bias(normal(3, 4, 7, 9))
    expressions = ExpressionWriter()
    first = [expressions.mask(Causal() & padding) for _ in range(30)]
    second = [expressions.mask(from_bool(attend=table)) for _ in range(30)]
    third = [expressions.score(Softcap(30.0) + bias) for _ in range(30)]
    assert len(expressions.tensors) == 3
    assert len(set(first)) == len(set(second)) == len(set(third)) == 1
    rules = again(expressions)
    assert rules.mask(first[0]) is rules.mask(first[-1])
    other = ExpressionWriter()
    other.mask(Padding(keep=booleans(1, 2, 9)))  # the same numbers elsewhere are other numbers
    other.mask(padding)
    assert len(other.tensors) == 2


def test_a_chain_of_one_is_that_one() -> None:
    expressions, sinks = ExpressionWriter(), Sinks(normal(1, 4))
    assert expressions.score(ScoreChain((sinks,))) == expressions.score(sinks) == 0
    assert len(expressions.nodes) == 1


def test_an_expanded_tensor_is_kept_as_what_it_was_expanded_from() -> None:
    expressions = ExpressionWriter()
    wide = booleans(1, 2, 1, 1, 9).expand(2, 4, 7, 9)
    place = expressions.mask(from_bool(attend=wide))
    assert [tuple(tensor.shape) for tensor in expressions.tensors.values()] == [(2, 1, 1, 9)]
    dense = again(expressions).mask(place).to_dense(SIZES)
    assert torch.equal(dense.expand(2, 4, 7, 9), from_bool(attend=wide).to_dense(SIZES))


def test_a_hundred_thousand_steps_are_a_table() -> None:
    count = 100_000
    rows = tuple(Rows(Window(5) if at % 2 else Causal(), at, at + 1, 0, at + 1) for at in range(count))
    expressions = ExpressionWriter()
    places = {expressions.mask(StackedMask(rows)) for _ in range(2)}
    assert len(places) == len(expressions.tensors) == 1
    assert len(json.dumps(expressions.nodes)) < 1000
    found = again(expressions).mask(places.pop())
    assert found == StackedMask(rows)
    found.check(Sizes(1, 1, count, count))


class Odd(Mask):
    """Somebody else's mask."""

    def allows(self, query: Tensor, key: Tensor, sizes: Sizes) -> Tensor:
        return (query + key) % 2 == 1

    def to_regions(self, sizes: Sizes) -> None:
        return None


class Wider(Causal):
    """Derived from one of ours, and another."""


@pytest.mark.parametrize("mask", [Odd(), ~Odd(), Causal() & Odd(), StackedMask((Rows(Odd(), 0, 7, 0, 9),)), Wider()])
def test_a_mask_of_somebody_else_is_refused_by_name(mask: Mask) -> None:
    with pytest.raises(UnsupportedError, match=r"Odd|Wider"):
        ExpressionWriter().mask(mask)


@pytest.mark.parametrize("score", [Softcap(float("inf")), Temperature(float("inf")), ALiBi(4, offset=1.5)])  # type: ignore[arg-type]
def test_numbers_that_json_cannot_hold_are_refused(score: ScoreMod) -> None:
    with pytest.raises(UnsupportedError):
        ExpressionWriter().score(score)


def test_deep_masks_are_refused_on_the_way_in() -> None:
    mask: Mask = Causal()
    for _ in range(5000):
        mask = ~mask
    with pytest.raises(UnsupportedError, match="64"):
        ExpressionWriter().mask(mask)


def chained(count: int, node: dict[str, Any]) -> list[Any]:
    """Nodes of which each holds the one before twice or once."""
    return [{"kind": "causal", "offset": None}] + [
        {**node, **{name: at for name in ("first", "second", "inner") if name in node}} for at in range(count)
    ]


TABLE = {"t": torch.zeros(2, 5, dtype=torch.int64), "f": torch.zeros(4), "b": torch.zeros(2, 9, dtype=torch.bool)}
HOSTILE: dict[str, list[Any]] = {
    "no object": [3],
    "no kind": [{}],
    "unknown kind": [{"kind": "pickle"}],
    "a kind that is no text": [{"kind": ["full"]}],
    "a field too many": [{"kind": "full", "offset": 1}],
    "a field too few": [{"kind": "causal"}],
    "an offset that is true": [{"kind": "causal", "offset": True}],
    "an offset beyond all": [{"kind": "causal", "offset": 2**70}],
    "offsets of text": [{"kind": "causal", "offset": ["1"]}],
    "a negative window": [{"kind": "window", "before": -1, "after": 0, "offset": None}],
    "a negative length": [{"kind": "lengths", "lengths": [-1, 2]}],
    "no lengths": [{"kind": "lengths", "lengths": []}],
    "itself inside": [{"kind": "not", "inner": 0}],
    "a later one inside": [{"kind": "not", "inner": 1}, {"kind": "full"}],
    "a negative place": [{"kind": "full"}, {"kind": "not", "inner": -1}],
    "a score in a mask": [{"kind": "softcap", "cap": 1.0}, {"kind": "not", "inner": 0}],
    "a mask in a score": [{"kind": "full"}, {"kind": "chain", "parts": [0]}],
    "an empty chain": [{"kind": "chain", "parts": []}],
    "a chain without end": [{"kind": "softcap", "cap": 1.0}, {"kind": "chain", "parts": [0] * 300_000}],
    "a cap of nothing": [{"kind": "softcap", "cap": 0}],
    "a cap that is no number": [{"kind": "softcap", "cap": float("nan")}],
    "an infinite temperature": [{"kind": "temperature", "value": float("inf")}],
    "a temperature with too many digits": [{"kind": "temperature", "value": 10**400}],
    "too deep": chained(100, {"kind": "not", "inner": 0}),
    "doubled again and again": chained(60, {"kind": "and", "first": 0, "second": 0}),
    "padding of whole numbers": [{"kind": "padding", "keep": "t"}],
    "booleans that are numbers": [{"kind": "booleans", "attend": "f"}],
    "a bias of booleans": [{"kind": "bias", "values": "b"}],
    "slopes of whole numbers": [{"kind": "alibi", "slopes": "t", "offset": None}],
    "sinks of booleans": [{"kind": "sinks", "logits": "b"}],
    "a tensor that has no name": [{"kind": "sinks", "logits": 3}],
    "a bias with one axis": [{"kind": "bias", "values": "f"}],
    "t5 without buckets": [{"kind": "t5", "table": "f", "bidirectional": True, "max_distance": 9, "offset": None}],
    "steps of numbers": [{"kind": "full"}, {"kind": "stacked", "masks": [0], "steps": "f"}],
    "steps without masks": [{"kind": "stacked", "masks": [], "steps": "t"}],
}


@pytest.mark.parametrize("nodes", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_made_up_is_refused(nodes: list[Any]) -> None:
    with pytest.raises(TraceError):
        ExpressionReader(nodes, TABLE, "trace.json")


def test_t5_tables_that_would_divide_by_zero_are_refused() -> None:
    for rows, distance in ((1, 9), (3, 9), (32, 8)):
        node = {"kind": "t5", "table": "x", "bidirectional": True, "max_distance": distance, "offset": None}
        with pytest.raises(TraceError):
            ExpressionReader([node], {"x": torch.zeros(rows, 4)}, "trace.json")


@pytest.mark.parametrize(
    "steps", [[[0, 3, 0, 5, 1]], [[0, 3, 0, 5, -1]], [[3, 0, 0, 5, 0]], [[0, 3, 5, 0, 0]], [[-1, 3, 0, 5, 0]]]
)
def test_steps_out_of_order_are_refused(steps: list[list[int]]) -> None:
    nodes = [{"kind": "full"}, {"kind": "stacked", "masks": [0], "steps": "x"}]
    with pytest.raises(TraceError):
        ExpressionReader(nodes, {"x": torch.tensor(steps)}, "trace.json")


def test_a_mask_that_does_not_fit_is_refused_with_both_shapes() -> None:
    rules = ExpressionReader([{"kind": "padding", "keep": "b"}], TABLE, "trace.json")
    rules.check(0, Sizes(2, 1, 3, 9), "layer 0")
    with pytest.raises(TraceError, match=r"layer 1.*\(2, 8\)"):
        rules.check(0, Sizes(2, 1, 3, 8), "layer 1")
