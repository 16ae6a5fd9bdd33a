"""The kernels as operators of torch, `torch.ops.attnscope.*`: each call launches one kernel.

As operators they are known to torch: they give shapes for fake tensors, and a mode that counts operators counts their
launches. They run on CUDA and ROCm devices only. Triton is imported at the first launch.

Every operator begins with the same arguments, from `KernelInputs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope.attention.intervals import BlockRows, Intervals
from attnscope.attention.triton.configs import Config
from attnscope.attention.triton.inputs import KernelInputs, NeighbourWeights, RowStatistics
from attnscope.attention.triton.layout import ColumnLayout
from attnscope.attention.triton.score_terms import ScoreTerms

NAMESPACE = "attnscope"
COMMON = (
    "Tensor query, Tensor key, Tensor start, Tensor stop, Tensor? slopes, Tensor? sinks, float scale, float? cap, "
    "int slope_offset, bool backward_only, int[] config, str precision"
)
NUM_COMMON = COMMON.count(",") + 1


def row_statistics(inputs: KernelInputs, *, find_key: bool = False) -> RowStatistics:
    """Return the statistics of all rows; see `launch.row_statistics`."""
    return RowStatistics.from_planes(*_row_pass(*to_arguments(inputs), find_key))


def neighbour_weights(inputs: KernelInputs, lse_base2: Tensor, reach: int) -> NeighbourWeights:
    """Return the weights on keys near the query; see `launch.neighbour_weights`."""
    return NeighbourWeights(*_neighbour_pass(*to_arguments(inputs), lse_base2, reach).unbind(0))


def matched_weights(inputs: KernelInputs, lse_base2: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Return the weight of each row on keys with the id of its query; see `launch.matched_weights`."""
    return _match_pass(*to_arguments(inputs), lse_base2, query_ids, key_ids)


def count_matches(inputs: KernelInputs, query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Return the number of such keys that the mask allows; see `launch.count_matches`."""
    return _match_count(*to_arguments(inputs), query_ids, key_ids)


def largest_keys(inputs: KernelInputs, candidates: Tensor) -> Tensor:
    """Return the key with the largest logit of each row; see `launch.largest_keys`."""
    return _largest_key_pass(*to_arguments(inputs), candidates)


def distance_spread(inputs: KernelInputs, lse_base2: Tensor, mean: Tensor) -> Tensor:
    """Return the standard deviation of the distance of each row; see `launch.distance_spread`."""
    return _spread_pass(*to_arguments(inputs), lse_base2, mean)


def column_sums(
    inputs: KernelInputs, lse_base2: Tensor, layout: ColumnLayout, *, maximum: bool
) -> tuple[Tensor, Tensor]:
    """Return sums and, if asked, maxima of a layout's columns or blocks; see `launch.column_sums`."""
    tensors = layout.left, layout.right, *layout.rows, layout.edges
    numbers = layout.width, layout.group, layout.first_column
    return _column_pass(*to_arguments(inputs), lse_base2, *tensors, *numbers, maximum)


def to_arguments(inputs: KernelInputs) -> tuple[Any, ...]:
    """Return the first arguments of every operator."""
    query, key, intervals, terms, config, precision = inputs
    assert config is not None, "a call of an operator says how its kernel is compiled"
    scores = terms.slopes, terms.sinks, terms.scale, terms.cap, terms.slope_offset
    return query, key, intervals.start, intervals.stop, *scores, intervals.backward_only, list(config), precision


def from_arguments(*arguments: Any) -> tuple[KernelInputs, tuple[Any, ...]]:
    """Return the inputs that `to_arguments` was given, and the other arguments."""
    query, key, start, stop, slopes, sinks, scale, cap, slope_offset, backward_only, config, precision, *rest = (
        arguments
    )
    terms = ScoreTerms(scale, cap, slopes, slope_offset, sinks)
    intervals = Intervals(start, stop, backward_only)
    return KernelInputs(query, key, intervals, terms, Config(*config), precision), tuple(rest)


def run_rows(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Launch the row pass."""
    inputs, (find_key,) = from_arguments(*arguments)
    return _launch().row_planes(inputs, None, find_key=find_key)


def run_neighbours(*arguments: Any) -> Tensor:
    """Launch the pass over keys near the query."""
    inputs, (lse_base2, reach) = from_arguments(*arguments)
    return _launch().neighbour_planes(inputs, lse_base2, reach)


def run_largest_key(*arguments: Any) -> Tensor:
    """Launch the search among the candidates of the row pass."""
    inputs, (candidates,) = from_arguments(*arguments)
    return _launch().largest_keys(inputs, candidates)


def run_matches(*arguments: Any) -> Tensor:
    """Launch the pass over keys that match their query."""
    inputs, ids = from_arguments(*arguments)
    return _launch().matched_weights(inputs, *ids)


def run_match_count(*arguments: Any) -> Tensor:
    """Launch the count of keys that match their query."""
    inputs, ids = from_arguments(*arguments)
    return _launch().count_matches(inputs, *ids)


def run_spread(*arguments: Any) -> Tensor:
    """Launch the second row pass, for the spread of distances."""
    inputs, (lse_base2, mean) = from_arguments(*arguments)
    return _launch().distance_spread(inputs, lse_base2, mean)


def run_columns(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Launch the column pass."""
    inputs, (lse_base2, left, right, *rows, edges, width, group, first_column, maximum) = from_arguments(*arguments)
    layout = ColumnLayout(left, right, BlockRows(*rows), edges, (width,), group, first_column)
    return _launch().column_sums(inputs, lse_base2, layout, maximum=maximum)


def _launch() -> Any:
    """The module that imports triton."""
    from attnscope.attention.triton import launch

    return launch


def _planes(query: Tensor, *shape: int) -> Tensor:
    return query.new_empty(shape, dtype=torch.float32)


def _fake_rows(*arguments: Any) -> tuple[Tensor, Tensor]:
    query, find_key = arguments[0], arguments[-1]
    candidates = query.new_empty(query.shape[:3] if find_key else 0, dtype=torch.int32)
    return _planes(query, 9, *query.shape[:3]), candidates


def _fake_columns(*arguments: Any) -> tuple[Tensor, Tensor]:
    query, (edges, width, _, _, maximum) = arguments[0], arguments[-5:]
    shape = (*query.shape[:2], len(edges) - 1, width)
    return _planes(query, *shape), _planes(query, *shape) if maximum else _planes(query, 0)


def _define(name: str, more: str, returns: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Register an operator with the arguments that all have, and some more."""
    schema = f"({COMMON}, {more}) -> {returns}"
    operator = torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=(), device_types="cuda", schema=schema)
    operator.register_fake(fake)
    return operator


_row_pass = _define("row_pass", "bool find_key", "(Tensor, Tensor)", run_rows, _fake_rows)
_neighbour_pass = _define(
    "neighbour_pass",
    "Tensor lse_base2, int reach",
    "Tensor",
    run_neighbours,
    lambda query, *_: _planes(query, 4, *query.shape[:3]),
)
_largest_key_pass = _define(
    "largest_key_pass",
    "Tensor candidates",
    "Tensor",
    run_largest_key,
    lambda query, *_: query.new_empty(query.shape[:3], dtype=torch.int32),
)
_match_pass = _define(
    "match_pass",
    "Tensor lse_base2, Tensor query_ids, Tensor key_ids",
    "Tensor",
    run_matches,
    lambda query, *rest: _planes(query, *query.shape[:2], len(rest[-1]), query.shape[2]),
)
_match_count = _define(
    "match_count",
    "Tensor query_ids, Tensor key_ids",
    "Tensor",
    run_match_count,
    lambda query, *rest: query.new_empty(len(query), len(rest[-1]), query.shape[2], dtype=torch.int64),
)
_spread_pass = _define(
    "spread_pass",
    "Tensor lse_base2, Tensor mean",
    "Tensor",
    run_spread,
    lambda query, *_: _planes(query, *query.shape[:3]),
)
_column_pass = _define(
    "column_pass",
    "Tensor lse_base2, Tensor left, Tensor right, Tensor first, Tensor last, Tensor full_first, Tensor full_last, "
    "Tensor edges, int width, int group, int first_column, bool maximum",
    "(Tensor, Tensor)",
    run_columns,
    _fake_columns,
)
RUN = {
    f"{NAMESPACE}::row_pass": run_rows,
    f"{NAMESPACE}::neighbour_pass": run_neighbours,
    f"{NAMESPACE}::largest_key_pass": run_largest_key,
    f"{NAMESPACE}::match_pass": run_matches,
    f"{NAMESPACE}::match_count": run_match_count,
    f"{NAMESPACE}::spread_pass": run_spread,
    f"{NAMESPACE}::column_pass": run_columns,
}
"""What each operator runs on a device."""
