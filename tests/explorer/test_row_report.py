"""The vectors of a query and its strongest keys give the weights and the output of the head."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnscope.attention import Causal, Sinks, Softcap, Window
from attnscope.explorer.library.library import Library
from attnscope.models import Decoder
from attnscope.models.layers import MultiHeadAttention
from attnscope.recording import Trace
from attnscope.recording.layers.recorded import Layer
from tests.explorer.model_sessions import TEXT, make_session, small
from tests.explorer.serving import serving, small_trace
from tests.explorer.test_overview import one_layer
from tests.explorer.test_server import Shown
from tests.explorer.test_why import SCHEMES, grouped_call, served  # noqa: F401

VALUES = torch.randn(1, 2, 30, 5, generator=torch.Generator().manual_seed(1))


def softmax_of_report(report: dict[str, Any]) -> tuple[list[float], torch.Tensor]:
    """Weights and output as the page computes them: from vectors, biases, and one score for all other keys."""
    query = torch.tensor(report["vector"], dtype=torch.float64)
    scores = [
        -math.inf
        if one["masked"]
        else float(query @ torch.tensor(one["vector"], dtype=torch.float64)) * report["scale"] + (one["bias"] or 0.0)
        for one in report["keys"]
    ]
    others = report["others"]
    rows = [*(one["value"] for one in report["keys"]), others["value"]]
    scores.append(-math.inf if others["score"] is None else others["score"])
    if report["sink"] is not None:
        scores.append(report["sink"])
        rows.append([0.0] * 5)
    weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
    return weights.tolist(), weights @ torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("options", SCHEMES.values(), ids=list(SCHEMES))
def test_the_vectors_give_weights_and_output(
    options: dict[str, Any],
    served: Callable[[Trace], Shown],  # noqa: F811
) -> None:
    call = grouped_call(value=VALUES, **options)
    shown = served(one_layer(call))
    dense = call.matrix().to_dense()[0].double()
    for head, query, key in ((0, 29, 25), (1, 29, 0), (3, 12, 10), (2, 0, 0)):
        report = shown.get(f"0/{head}/steps?query={query}&key={key}").json
        positions = [one["position"] for one in report["keys"]]
        assert positions == sorted(positions)
        assert key in positions
        assert set(dense[head, query].topk(min(7, query + 1)).indices.tolist()) <= {*positions, *range(query + 1, 30)}
        weights, output = softmax_of_report(report)
        assert weights[: len(positions)] == pytest.approx(dense[head, query, positions].tolist(), abs=1e-6)
        assert [one["weight"] for one in report["keys"]] == pytest.approx(weights[: len(positions)], abs=1e-6)
        assert output.tolist() == pytest.approx((dense[head, query] @ VALUES[0, head // 2].double()).tolist(), abs=1e-5)
        visible = int((dense[head, query] > 0).sum())
        assert (report["num_keys"], report["visible_keys"]) == (30, visible)
        assert report["others"]["count"] == visible - sum(not one["masked"] for one in report["keys"])
        assert (report["sink"] is not None) == isinstance(options.get("score_mod"), Sinks)


def test_a_masked_key_is_listed_and_values_may_be_missing(served: Callable[[Trace], Shown]) -> None:  # noqa: F811
    shown = served(one_layer(grouped_call(mask=Causal() & Window(before=3), score_mod=Softcap(5.0))))
    report = shown.get("0/0/steps?query=20&key=25").json
    assert [(one["position"], one["masked"]) for one in report["keys"]][-1] == (25, True)
    assert (report["visible_keys"], report["others"]) == (4, {"count": 0, "score": None, "value": None})
    assert {one["value"] for one in report["keys"]} == {None}
    assert sum(one["weight"] for one in report["keys"]) == pytest.approx(1.0)


def test_texts_of_tokens_are_there_where_they_are_known() -> None:
    with serving(small_trace()) as handle:
        trace = handle.get("/api/1/session").json["traces"][0]["trace"]
        report = handle.get(f"/api/1/{trace}/0/0/steps?query=9&key=3").json
        texts = handle.get(f"/api/1/{trace}/0/tokens?side=key&from=0&to=10").json
    assert report["text"] == texts[9]
    assert all(one["text"] == texts[one["position"]] for one in report["keys"])


def test_only_what_is_recorded_has_vectors(served: Callable[[Trace], Shown]) -> None:  # noqa: F811
    weights_only = served(Trace.from_attentions([torch.eye(5).expand(1, 2, 5, 5)]))
    assert weights_only.get("0/0/steps?query=2&key=2").status == 409
    broken = grouped_call()
    broken.query[0, 0, 5] = torch.nan
    assert served(one_layer(broken)).get("0/0/steps?query=5&key=2").status == 400


def test_a_head_through_the_output_projection_is_what_it_adds_to_the_stream() -> None:
    session = make_session()
    trace = session.run(TEXT)
    model = session._model
    assert isinstance(model, Decoder)
    layer, head, query = 1, 2, 20
    with torch.no_grad(), serving(trace, session) as handle:
        name = handle.get("/api/1/session").json["traces"][0]["trace"]
        found = handle.get(f"/api/1/{name}/{layer}/{head}/projection?query={query}")
        assert handle.get(f"/api/1/{name}/{layer}/{head}/projection?query=29").status == 400
    attention = model.get_submodule("blocks.1.attention")
    assert isinstance(attention, MultiHeadAttention)
    recorded = trace.layers["blocks.1.attention"]
    assert isinstance(recorded, Layer)
    call = recorded.merge_calls()
    assert call.value is not None
    output = call.matrix().to_dense()[0, head, query].double() @ call.value[0, head // 2].double()
    columns = slice(head * output.shape[0], (head + 1) * output.shape[0])
    expected = attention.output.weight[:, columns].double() @ output
    assert (found.json["problem"], found.headers["cache-control"]) == (None, "no-store")
    assert found.json["output"] == pytest.approx(expected.tolist(), abs=1e-9)


def test_what_is_missing_for_the_projection_is_told() -> None:
    library = Library()
    session, other = make_session(), make_session(small(num_layers=1))
    names = [library.add(trace, name="shown") for trace in (session.read(TEXT), other.run(TEXT))]
    with serving(library, session) as handle:
        problems = [handle.get(f"/api/1/{name}/0/0/projection?query=3").json["problem"] for name in names]
    with serving(other.run(TEXT)) as handle:
        name = handle.get("/api/1/session").json["traces"][0]["trace"]
        problems.append(handle.get(f"/api/1/{name}/0/0/projection?query=3").json["problem"])
    assert ["values of this trace were not recorded" in problems[0], "was not recorded from" in problems[1]] == [
        True
    ] * 2
    assert "No model is loaded" in problems[2]
