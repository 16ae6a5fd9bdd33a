"""Masks: what each one says, that its regions say the same, and what it refuses."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from attnscope.attention import Causal, Documents, Full, Mask, Padding, Prefix, Window, attend, from_bool
from attnscope.attention.algebra import Sizes
from attnscope.errors import ShapeError
from tests.attention.cases import MASKS, SHAPES
from tests.attention.oracle import Case, Shape, allowed

SIZES = Sizes(2, 3, 10, 10)


def sizes_of(shape: Shape) -> Sizes:
    return Sizes(shape.batch, shape.heads, shape.queries, shape.keys)


def drawn(mask: Mask, sizes: Sizes) -> Tensor:
    """The booleans that a mask's regions (and kept keys) stand for."""
    region_mask = mask.to_regions(sizes)
    assert region_mask is not None
    table = torch.zeros(sizes.batch, 1, sizes.queries, sizes.keys, dtype=torch.bool)
    for row in range(sizes.batch):
        for region in region_mask.regions[row if len(region_mask.regions) > 1 else 0]:
            i, j = torch.meshgrid(
                torch.arange(region.top, region.bottom), torch.arange(region.left, region.right), indexing="ij"
            )
            inside = (j - i >= region.lowest) & (j - i <= region.highest)
            assert not (table[row, 0, i, j] & inside).any(), "regions overlap"
            table[row, 0, i, j] |= inside
    return table if region_mask.key_mask is None else table & region_mask.key_mask[:, None, None, :]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("case", MASKS, ids=lambda case: case.name)
def test_a_mask_says_what_its_sentence_says(case: Case, shape: Shape) -> None:
    dense = case.mask(shape).to_dense(sizes_of(shape))
    assert torch.equal(dense.expand(shape.batch, 1, -1, -1), allowed(case, shape))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("case", [case for case in MASKS if "booleans" not in case.name], ids=lambda case: case.name)
def test_regions_say_the_same(case: Case, shape: Shape) -> None:
    assert torch.equal(drawn(case.mask(shape), sizes_of(shape)), allowed(case, shape))


@pytest.mark.parametrize("case", MASKS, ids=lambda case: case.name)
def test_scattered_cells_are_answered_like_the_dense_ones(case: Case) -> None:
    shape = SHAPES["fewer queries"]
    mask, sizes = case.mask(shape), sizes_of(shape)
    i, j = torch.randint(shape.queries, (50,)), torch.randint(shape.keys, (50,))
    found = mask.allows(i, j, sizes)
    found = found if found.dim() > 1 else found[None, None]
    assert torch.equal(found.expand(shape.batch, 1, 50), allowed(case, shape)[:, :, i, j])


def test_a_window_counts_the_token_itself() -> None:
    assert Window(1).to_dense(SIZES).sum() == 10
    assert Window(4).to_dense(SIZES)[0, 0].sum(-1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    assert Window(before=1, after=2).to_dense(SIZES)[0, 0, 5].nonzero().flatten().tolist() == [4, 5, 6, 7]


def test_causal_aligns_to_the_last_key_unless_told() -> None:
    sizes = Sizes(1, 1, 3, 7)
    assert Causal().to_dense(sizes)[0, 0].sum(-1).tolist() == [5, 6, 7]
    assert Causal(offset=0).to_dense(sizes)[0, 0].sum(-1).tolist() == [1, 2, 3]


def test_operators_follow_boolean_algebra() -> None:
    masks = [Causal(), Window(before=2, after=1), Prefix(4), Documents(torch.arange(10) // 3), Padding([7, 10])]
    masks.append(from_bool(attend=torch.rand(2, 3, 10, 10) > 0.5))
    for a in masks:
        for b in masks:
            left, right = a.to_dense(SIZES), b.to_dense(SIZES)
            assert torch.equal((a & b).to_dense(SIZES), left & right)
            assert torch.equal((a | b).to_dense(SIZES), left | right)
            assert torch.equal((~(a & b)).to_dense(SIZES), (~a | ~b).to_dense(SIZES))
            assert torch.equal((~~a).to_dense(SIZES), left)


@pytest.mark.parametrize("ids", [[0, 0, 1, 1, 0, 2, 2, 0, 1, 1], [5] * 10, list(range(10))], ids=str)
def test_documents_may_come_back_and_be_of_any_length(ids: list[int]) -> None:
    mask = Documents(ids)
    table = torch.tensor(ids)[:, None] == torch.tensor(ids)[None]
    assert torch.equal(drawn(mask, SIZES)[0, 0], table)
    assert torch.equal(mask.to_dense(SIZES)[0, 0], table)


def test_too_many_pieces_are_no_regions() -> None:
    ids = torch.arange(20_000) % 2  # 10,000 stretches of two documents: 10^8 rectangles
    assert Documents(ids).to_regions(Sizes(1, 1, 20_000, 20_000)) is None


def test_only_masks_without_tensors_are_static() -> None:
    assert (~Causal() | Window(3) & Prefix([2, 3])).is_static
    assert not (Causal() & Padding([3, 4])).is_static
    assert not Documents([0, 1]).is_static
    assert Causal() & Window(3) == Causal() & Window(3)


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (Full(), "Full()"),
        (Causal(), "Causal()"),
        (Causal(offset=2), "Causal(offset=2)"),
        (Window(8), "Window(8)"),
        (Window(before=1, after=2), "Window(before=1, after=2)"),
        (~(Causal() & Prefix(3)) | Full(), "(~(Causal() & Prefix(length=3)) | Full())"),
        (Padding([3, 1]), "Padding(lengths (3, 1))"),
        (Documents(torch.zeros(2, 5)), "Documents(ids (2, 5))"),
    ],
    ids=str,
)
def test_masks_print_as_they_are_written(mask: Mask, text: str) -> None:
    assert str(mask) == text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(), r"width.* before= and after="),
        (lambda: Window(0), r"Window.*width.*\b1\b.*got 0"),
        (lambda: Window(3, after=1), r"Window.*width=3.*after=1"),
        (lambda: Window(before=-1), r"Window.*before=-1"),
        (lambda: Padding(), r"Padding.*lengths.*keep="),
        (lambda: Padding(keep=torch.tensor([[0, 1, 2]])), "Padding.*keep.*0 and 1"),
        (lambda: Padding(keep=torch.ones(2, 3)), r"Padding.*keep.*\(batch, keys\).*got \(2, 3\) torch.float32"),
        (lambda: from_bool(), r"from_bool.*attend=.*drop="),
        (lambda: from_bool(attend=torch.zeros(3, 3)), r"from_bool.*booleans.*torch.float32.*Bias"),
        (lambda: from_bool(drop=torch.zeros(3, dtype=torch.bool)), r"from_bool.*\(..., queries, keys\), got \(3,\)"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_written(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Padding([3, 4, 5]), r"Padding.*batch row.* 2, got 3"),
        (Padding([3, 11]), r"Padding.*lengths.* 0 to 10.*\(3, 11\)"),
        (Padding(keep=torch.ones(2, 9, dtype=torch.bool)), r"Padding.*keep.*\(2, 10\).*got \(2, 9\)"),
        (Causal(offset=[1, 2, 3]), r"Causal\(offset=\(1, 2, 3\)\): .*batch row.* 2, got 3"),
        (Documents(torch.zeros(9)), r"Documents.*ids.*\(10,\) or \(2, 10\).*got \(9,\)"),
        (Documents(torch.zeros(10), torch.zeros(2, 10)), r"Documents.*query_ids.*1-D and 2-D"),
        (from_bool(attend=torch.ones(5, 1, 10, 10) > 0), r"from_bool.*\(2, 3, 10, 10\).*got \(5, 1, 10, 10\)"),
    ],
)
def test_what_does_not_fit_the_attention_is_refused(mask: Mask, message: str) -> None:
    for wrapped in (mask, mask & Causal(), ~mask, Causal() | mask):
        with pytest.raises(ShapeError, match=message):
            wrapped.check(SIZES)


def test_more_queries_than_keys_need_their_own_document_ids() -> None:
    with pytest.raises(ShapeError, match=r"Documents.*10.*got 12.*query_ids"):
        Documents(torch.zeros(10)).check(Sizes(1, 1, 12, 10))


def test_masks_combine_with_masks_only() -> None:
    with pytest.raises(TypeError, match=r"mask, got Tensor.*from_bool"):
        _ = Causal() & torch.ones(3, 3)  # pyright: ignore[reportOperatorIssue]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
def test_an_attention_mask_of_zeros_and_ones_is_padding(dtype: torch.dtype) -> None:
    keep = torch.tensor([[0, 0, 1, 1], [1, 0, 1, 1]], dtype=dtype)
    sizes = Sizes(2, 1, 4, 4)
    assert torch.equal(Padding(keep=keep).to_dense(sizes), Padding(keep=keep == 1).to_dense(sizes))


@pytest.mark.parametrize(
    ("mask", "batch"),
    [
        (Documents(torch.zeros(0, dtype=torch.long)), 2),
        (Documents(torch.zeros(2, 0, dtype=torch.long)), 2),
        (Padding(keep=torch.zeros(2, 0, dtype=torch.bool)), 2),
        (Padding([0, 0]), 2),
        (Padding([]), 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["auto", "streaming", "reference"])
def test_an_empty_sequence_or_batch_has_an_empty_output(mask: Mask, batch: int, backend: Literal["auto"]) -> None:
    query = torch.randn(batch, 3, 0, 4)
    output, lse = attend(query, query, query, mask=mask, backend=backend, return_lse=True)
    assert output.shape == (batch, 3, 0, 4)
    assert lse.shape == (batch, 3, 0)


@pytest.mark.parametrize("make", [lambda number: Prefix(number), lambda number: Causal(offset=number)])
def test_a_fraction_is_not_a_position(make) -> None:
    with pytest.raises(TypeError, match="whole number"):
        make(2.7)
