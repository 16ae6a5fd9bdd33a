"""Masks of transformers, read from their predicates, are the tensors that transformers would build."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import masking_utils as theirs

from attnscope.attention import Causal, Full, Window
from attnscope.attention.algebra import Mask, Sizes
from attnscope.errors import UnsupportedError, VersionError
from attnscope.recording.hooks import transformers_masks
from attnscope.recording.hooks.transformers_attention import Arguments
from attnscope.recording.hooks.transformers_attention import read as read_arguments
from attnscope.recording.hooks.transformers_masks import LazyMask

BATCH, LONGEST = 2, 16
OLD_NAMES = "cache_position" in inspect.signature(theirs.sdpa_mask).parameters  # transformers below 5.4


def as_installed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a mask function as the installed transformers names them."""
    return in_old_names(arguments) if OLD_NAMES else arguments


def in_old_names(arguments: dict[str, Any]) -> dict[str, Any]:
    """Positions of the queries instead of how many they are and where they begin."""
    rest = {name: value for name, value in arguments.items() if name not in ("q_length", "q_offset")}
    start = arguments.get("q_offset", 0)
    return {**rest, "cache_position": torch.arange(start, start + arguments["q_length"])}


def tensors(dtype: torch.dtype, highest: int) -> st.SearchStrategy[Tensor]:
    row = st.lists(st.integers(0, highest), min_size=LONGEST, max_size=LONGEST)
    return st.lists(row, min_size=BATCH, max_size=BATCH).map(lambda rows: torch.tensor(rows).to(dtype))


def optional(name: str, arguments: st.SearchStrategy) -> list[st.SearchStrategy[Callable]]:
    """Predicates that the first releases of transformers 5 do not have."""
    return [arguments.map(getattr(theirs, name))] if hasattr(theirs, name) else []


def predicates() -> st.SearchStrategy[Callable]:
    """Everything that transformers makes masks of."""
    widths = st.integers(1, 6)
    single = st.one_of(
        st.sampled_from([theirs.causal_mask_function, theirs.bidirectional_mask_function]),
        widths.map(theirs.sliding_window_overlay),
        *optional("sliding_window_bidirectional_overlay", widths),
        widths.map(theirs.sliding_window_causal_mask_function),
        st.builds(
            theirs.chunked_overlay, widths, st.lists(st.integers(0, 5), min_size=2, max_size=2).map(torch.tensor)
        ),
        tensors(torch.long, 2).map(theirs.packed_sequence_mask_function),
        *optional("blockwise_overlay", tensors(torch.long, 3).map(lambda ids: ids - 1)),
        tensors(torch.bool, 1).map(theirs.padding_mask_function),
        st.just(lambda batch, head, query, key: (query + 2 * key) % 3 > 0),  # nobody knows this one
    )
    pair = st.lists(single, min_size=1, max_size=3)
    return st.one_of(
        single, pair.map(lambda parts: theirs.and_masks(*parts)), pair.map(lambda parts: theirs.or_masks(*parts))
    )


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    row = draw(st.integers(0, 6))
    column = draw(st.integers(0, 4))
    return as_installed(
        {
            "batch_size": BATCH,
            "q_length": draw(st.integers(1, LONGEST - row)),
            "kv_length": draw(st.integers(1, LONGEST - column)),
            "q_offset": row,
            "kv_offset": column,
            "mask_function": draw(predicates()),
            "attention_mask": draw(st.none() | tensors(torch.bool, 1)),
        }
    )


@given(arguments())
@settings(max_examples=300)
def test_a_predicate_read_as_a_mask_is_the_tensor_of_transformers(given_arguments: dict[str, Any]):
    lazy = LazyMask(given_arguments, lambda _: None)
    rows, columns = (
        range(start, start + count) for start, count in ((lazy.row, lazy.shape[2]), (lazy.column, lazy.shape[3]))
    )
    mask = lazy.slice(rows, columns)
    sizes = Sizes(BATCH, 1, len(rows), len(columns))
    expected = theirs.sdpa_mask(**given_arguments, allow_is_causal_skip=False)
    assert expected is not None
    assert torch.equal(mask.to_dense(sizes).expand(BATCH, 1, -1, -1), expected)


def test_what_has_a_name_is_known_by_it():
    def mask(predicate: Callable, **more: Any) -> object:
        sizes = {"batch_size": 1, "q_length": 9, "kv_length": 9}
        return LazyMask({**sizes, "mask_function": predicate, **more}, lambda _: None).slice(range(9), range(9))

    assert mask(theirs.causal_mask_function) == Causal()
    assert mask(theirs.sliding_window_causal_mask_function(4)) == Window(4)
    assert mask(theirs.bidirectional_mask_function) == Full()
    assert mask(theirs.causal_mask_function, attention_mask=torch.ones(1, 9, dtype=torch.bool)) == Causal()


def test_code_that_works_on_the_mask_itself_gets_the_tensor_of_its_own_implementation():
    sizes = {"batch_size": 1, "q_length": 3, "kv_length": 3}
    arguments = as_installed({**sizes, "mask_function": theirs.causal_mask_function})
    eager: Any = LazyMask(arguments, lambda given: theirs.eager_mask(**given))
    scores = torch.zeros(1, 1, 3, 3)
    expected = theirs.eager_mask(**arguments)
    assert torch.equal(scores + eager, expected)
    assert torch.equal(eager[:, :, :2], expected[:, :, :2])
    assert torch.equal(torch.cat([eager, eager]), torch.cat([expected, expected]))
    assert eager.dtype == torch.float32
    assert eager.contiguous() is eager


def test_a_predicate_that_nobody_knows_is_built_up_to_a_limit_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transformers_masks, "MAX_CELLS", 50)
    arguments = {"batch_size": 1, "q_length": 9, "kv_length": 9, "mask_function": lambda b, h, q, k: q + k > 3}
    with pytest.raises(UnsupportedError, match="81 cells"):
        LazyMask(arguments, lambda _: None).slice(range(9), range(9))


def test_the_argument_names_of_transformers_below_5_4_are_read():
    sizes = {"batch_size": 2, "q_length": 3, "kv_length": 8, "q_offset": 5}
    arguments = in_old_names({**sizes, "mask_function": theirs.causal_mask_function})
    passed: list[Any] = []
    lazy = LazyMask(arguments, passed.append)
    assert (lazy.row, lazy.shape) == (5, (2, 1, 3, 8))
    assert lazy.slice(range(5, 8), range(8)) == Causal()
    lazy.tensor()
    assert passed[0].keys() == arguments.keys()
    assert torch.equal(passed[0]["cache_position"], torch.tensor([5, 6, 7]))
    with pytest.raises(UnsupportedError, match="consecutive positions"):
        LazyMask({**arguments, "cache_position": torch.tensor([1, 3])}, passed.append)


def test_arguments_that_nobody_knows_are_reported_with_the_version():
    arguments = {"batch_size": 1, "kv_length": 3, "mask_function": theirs.causal_mask_function, "queries": 3}
    with pytest.raises(VersionError, match=r"transformers 5\.\S+ has no argument 'q_length' .*pip install"):
        LazyMask(arguments, lambda _: None)


def test_a_variable_that_transformers_renames_is_read_cell_by_cell():
    def sliding_window_overlay(width: int) -> Callable:
        return lambda batch, head, query, key: key > query - width

    predicate = sliding_window_overlay(3)
    predicate.__module__, predicate.__qualname__ = theirs.__name__, theirs.sliding_window_overlay(3).__qualname__
    sizes = {"batch_size": 1, "q_length": 9, "kv_length": 9}
    arguments = as_installed({**sizes, "mask_function": theirs.and_masks(theirs.causal_mask_function, predicate)})
    found = LazyMask(arguments, lambda _: None).slice(range(9), range(9))
    assert torch.equal(found.to_dense(Sizes(1, 1, 9, 9)), Window(3).to_dense(Sizes(1, 1, 9, 9)))


@pytest.mark.parametrize(("is_causal", "mask"), [(True, Causal()), (False, Full())])
def test_without_a_mask_the_flag_of_the_call_decides(is_causal: bool, mask: Mask) -> None:
    tensor, module = torch.randn(1, 2, 3, 4), nn.Identity()
    arguments = Arguments(
        module=module,
        query=tensor,
        key=tensor,
        value=tensor,
        attention_mask=None,
        scaling=None,
        dropout=0.0,
        kwargs={"is_causal": is_causal},
    )
    assert read_arguments(arguments).mask == mask
