"""The trained heads that the page of steps ships are those of the model."""

from __future__ import annotations

import pytest

from attnscope.models import Decoder
from attnscope.recording import load
from scripts.make_steps_example import HEAD_DIM, HEADS, MODEL, get_attention
from tests.steps.example_data import decode_blocks, example_data


@pytest.mark.skipif(not MODEL.is_dir(), reason="needs a trained model: run scripts/setup")
def test_w_o_of_each_head_is_that_of_the_model() -> None:
    model, _ = load(MODEL, progress=False)
    assert isinstance(model, Decoder)
    heads = example_data()["heads"]
    assert [(one["layer"], one["head"]) for one in heads] == list(HEADS)
    for one in heads:
        weight = get_attention(model, one["layer"]).output.weight.detach().double()
        columns = weight[:, one["head"] * HEAD_DIM :][:, :HEAD_DIM]
        assert decode_blocks(one["output"]).tolist() == [pytest.approx(row, abs=1e-6) for row in columns.tolist()]
