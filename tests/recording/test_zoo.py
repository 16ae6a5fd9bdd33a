"""The zoo itself: every model runs, and its own attention weights are seen."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.recording.exhibit import IS_OLDER, LENGTH
from tests.recording.zoo import (
    BYPASS,
    EXHIBITS,
    HYBRID,
    PARTIAL,
    SPARSE,
    Exhibit,
    eager_run,
    eager_weights,
    real_outputs,
    real_rows,
)

pytestmark = pytest.mark.skipif(IS_OLDER, reason="describes the tested version of transformers")

ALL = (*EXHIBITS, *HYBRID, *SPARSE, *PARTIAL, *BYPASS)
SEEN = (*EXHIBITS, *HYBRID, *SPARSE)


def by_name(exhibits: tuple[Exhibit, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("exhibit", exhibits, ids=lambda exhibit: exhibit.name)


def test_the_zoo_is_large_and_its_names_differ():
    assert len({exhibit.model_type for exhibit in EXHIBITS}) >= 100
    assert len(HYBRID) >= 4
    assert len(BYPASS) >= 6
    assert Counter(exhibit.name for exhibit in ALL).most_common(1)[0][1] == 1


@by_name(SEEN)
def test_every_call_of_attention_is_seen(exhibit: Exhibit):
    model, inputs, weights = ran_both_ways(exhibit)
    assert sum(map(len, weights.values())) == exhibit.attention_layers
    assert weights.keys() <= dict(model.named_modules()).keys()
    check_weights(exhibit, [matrix for calls in weights.values() for matrix in calls], inputs)
    assert any(len(calls) > 1 for calls in weights.values()) == ("called again" in exhibit.features)


@by_name(PARTIAL)
def test_attention_that_partly_bypasses_the_interface_is_partly_seen(exhibit: Exhibit):
    _, _, weights = ran_both_ways(exhibit)
    assert 0 < sum(map(len, weights.values())) < exhibit.attention_layers


@by_name(BYPASS)
def test_attention_that_bypasses_the_interface_is_not_seen(exhibit: Exhibit):
    _, _, weights = ran_both_ways(exhibit)
    assert not weights


def test_models_and_weights_are_the_same_every_time():
    first, second = (eager_weights(EXHIBITS[0]) for _ in range(2))
    torch.testing.assert_close(first, second, atol=0, rtol=0)


def ran_both_ways(exhibit: Exhibit) -> tuple[PreTrainedModel, dict[str, Any], dict[str, list[Tensor]]]:
    """A model, its inputs and its eager weights, once its default attention and its eager attention agree."""
    model = exhibit.build()
    inputs = exhibit.inputs(model)
    assert model.config.model_type == exhibit.model_type
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    with torch.no_grad():
        outputs = real_outputs(model(**inputs), inputs)
    eager_outputs, weights = eager_run(exhibit)
    assert outputs
    assert all(output.isfinite().all() for output in outputs.values())
    torch.testing.assert_close(outputs, real_outputs(eager_outputs, inputs), atol=1e-4, rtol=0)
    return model, inputs, weights


def check_weights(exhibit: Exhibit, weights: list[Tensor], inputs: dict[str, Any]) -> None:
    """Assert that weights are what an exhibit's features promise."""
    assert all(matrix.ndim == 4 for matrix in weights)
    rows = [real_rows(matrix, inputs) for matrix in weights]
    sums = torch.cat([row.sum(-1).flatten() for row in rows])
    sinks = "sinks" in exhibit.features
    assert sums.max() <= 1 + 1e-5
    assert (sums.min() < 0.99) if sinks else (sums.min() >= 1 - 1e-5)
    assert max(float(row.amax(-1).mean()) * row.shape[-1] for row in rows) > 2, "attention is nearly uniform"
    if {"window", "chunks", "sparse"} & set(exhibit.features):
        assert any(leaves_out_keys(matrix) for matrix in weights)
    if "cross" in exhibit.features:
        assert any(matrix.shape[-2] != matrix.shape[-1] for matrix in weights)
    if "encoder" not in exhibit.features:
        both_ways = any(sees_later_keys(matrix) for matrix in weights if matrix.shape[-1] == LENGTH)
        assert both_ways == any(feature.startswith("both ways") for feature in exhibit.features)


def sees_later_keys(matrix: Tensor) -> bool:
    """Whether a query attends to a later key of the first row, which has no padding."""
    return bool(matrix[0].triu(1).any())


def leaves_out_keys(matrix: Tensor) -> bool:
    """Whether a query does not attend to an earlier key of the first row, which has no padding."""
    earlier = torch.ones(matrix.shape[-2:]).tril().bool()
    return matrix.shape[-2] == matrix.shape[-1] and bool((matrix[0, :, earlier] == 0).any())
