"""Every architecture of the zoo: the watched largest logit is that of all allowed logits in fp64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnscope.attention.algebra import Sizes
from attnscope.attention.cells import block_scores
from attnscope.attention.scores import Cells
from attnscope.attention.spec import make_spec, signature_of
from attnscope.recording import record
from attnscope.recording.call import Call
from attnscope.recording.layers.recorded import Layer
from attnscope.telemetry.watcher import Report, Watch
from tests.recording.zoo import EXHIBITS, HYBRID, Exhibit


def all_logits(call: Call) -> Tensor:
    """Every logit in fp64, (batch, heads, queries, keys), -inf where the mask does not allow it."""
    query, key = call.query.double(), call.key.double()
    spec = make_spec(
        signature_of(query, key, key), mask=call.mask, scale=call.scale, score_mod=call.score_mod, dropout=0.0
    )
    batch, heads, queries, _ = query.shape
    sizes = Sizes(batch, heads, queries, key.shape[2])
    cells = Cells(torch.arange(sizes.queries)[:, None], torch.arange(sizes.keys)[None], sizes)
    return block_scores(spec, query, key, cells)[-1].masked_fill(~call.mask.to_dense(sizes), -math.inf)


def watched(exhibit: Exhibit) -> tuple[Report, dict[str, list[Call]]]:
    """The report of a step, and the calls of each module that were recorded in the same forward pass."""
    model = exhibit.build()
    inputs = exhibit.inputs(model)
    model.training = True  # of the model alone, so that its layers do not drop out
    with torch.no_grad(), Watch(model, every=1) as watch, record(model) as trace:
        model(**inputs)
        report = watch.step()
    assert report is not None
    calls: dict[str, list[Call]] = {}
    for name, layer in trace.layers.items():
        assert isinstance(layer, Layer)
        calls.setdefault(name.partition("#")[0], []).append(layer.merge_calls())
    return report, calls


@pytest.mark.parametrize("exhibit", [*EXHIBITS, *HYBRID], ids=lambda exhibit: exhibit.name)
def test_the_largest_logit_is_that_of_all_allowed_ones(exhibit: Exhibit) -> None:
    report, calls = watched(exhibit)
    assert {layer for layer, _ in report.heads} == calls.keys()
    for at, (layer, head) in enumerate(report.heads):
        logits = [all_logits(call)[:, head] for call in calls[layer]]
        expected = max(float(one.max()) for one in logits)
        size = max(float(one[one.isfinite()].abs().max()) for one in logits if one.isfinite().any())
        found = float(report.statistics.max_logit[at])
        assert abs(found - expected) <= 4 * torch.finfo(torch.float32).eps * max(size, 1.0)
        place = [int(part[at]) for part in report.statistics[2:5]]
        sequence, query, key = place
        at_place = [
            float(one[sequence, query - call.row, key - call.column])
            for one, call in zip(logits, calls[layer], strict=True)
            if query in call.rows and key in call.columns
        ]
        assert any(abs(value - expected) <= 1e-5 * max(size, 1.0) for value in at_place)
