"""An alert keeps the queries and keys of its head, as a trace that shows the same logit at the same place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnscope import open_trace
from attnscope.telemetry import kept_calls
from attnscope.telemetry.alerts import LargeLogit
from attnscope.telemetry.run_log import list_traces, read_alerts
from attnscope.telemetry.watcher import Watch
from tests.telemetry.test_watcher import IDS, make_model, train


def test_the_trace_of_an_alert_has_its_logit_at_its_place(tmp_path: Path) -> None:
    model = make_model(initializer_range=0.5)
    with Watch(model, every=1, folder=tmp_path, rules=[LargeLogit(0.0)]) as watch:
        _, (report,) = train(model, 1, watch)
    alerts = [alert for alert in read_alerts(tmp_path) if alert.trace is not None]
    assert [alert.trace for alert in alerts] == [alert.trace for alert in report.alerts if alert.trace is not None]
    assert {alert.layer for alert in alerts} == {"model.layers.0.self_attn", "model.layers.1.self_attn"}
    for alert in alerts:
        trace = open_trace(tmp_path / str(alert.trace))
        matrix = trace[alert.layer]
        assert matrix.shape == (1, 1, 24, 24)
        found = matrix.max_logit()
        assert found.logits.item() == pytest.approx(alert.value, rel=1e-6)
        assert (found.queries.item(), found.keys.item()) == (alert.query, alert.key)
        ids, _ = trace.ids(alert.layer)
        assert ids is not None
        assert torch.equal(ids, IDS[alert.sequence : alert.sequence + 1])
        assert trace.layer(alert.layer).heads == (alert.head,)


def test_the_head_with_the_largest_logit_of_all_micro_batches_is_kept(tmp_path: Path) -> None:
    model = make_model(initializer_range=0.5)
    with torch.no_grad(), Watch(model, every=1, folder=tmp_path, rules=[LargeLogit(0.0)]) as watch:
        for row in IDS:
            model(row[None])
        report = watch.step()
    assert report is not None
    kept = [alert for alert in report.alerts if alert.trace is not None]
    for layer in {layer for layer, _ in report.heads}:
        largest = max((alert for alert in report.alerts if alert.layer == layer), key=lambda alert: alert.value)
        assert largest.head in [alert.head for alert in kept if alert.layer == layer]
        found = open_trace(tmp_path / str(next(one.trace for one in kept if one == largest)))[layer].max_logit()
        assert found.logits.item() == pytest.approx(largest.value, rel=1e-6)


def test_long_sequences_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_calls, "MAX_BYTES", 100)
    model = make_model()
    with Watch(model, every=1, folder=tmp_path, rules=[LargeLogit(-100.0)]) as watch:
        _, (report,) = train(model, 1, watch)
    assert report.alerts
    assert all(alert.trace is None for alert in report.alerts)


def test_traces_of_later_steps_go_when_a_run_resumes(tmp_path: Path) -> None:
    model = make_model()
    rules = [LargeLogit(-100.0)]
    with Watch(model, every=1, folder=tmp_path, rules=rules) as watch:
        train(model, 1, watch)
    with Watch(model, every=1, folder=tmp_path, rules=rules, step=5) as watch:
        train(model, 1, watch)  # the alerts of step 1 are still active
    assert {trace.name[:8] for trace in list_traces(tmp_path)} == {"00000001"}
    with Watch(model, every=1, folder=tmp_path, rules=rules, step=0) as watch:
        assert not list_traces(tmp_path)
        _, (report,) = train(model, 1, watch)
    assert len(report.alerts) == 8
