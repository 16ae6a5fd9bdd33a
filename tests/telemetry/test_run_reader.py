"""A run is read while it is written; what is damaged or foreign is named."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from attnscope.errors import CheckpointError, SettingError
from attnscope.models.checked_log import encode_line
from attnscope.telemetry.log_follower import LogFollower
from attnscope.telemetry.run_log import ADVICE, ALERTS, STEPS, RunLog
from attnscope.telemetry.run_reader import HeadName, RunReader
from attnscope.telemetry.run_summary import compare_runs, shorten_series, summarize_run
from tests.telemetry.runs import LAYERS, make_alert, make_statistics, write_run, write_steps

LOGITS = np.array([[1, 2, 3, 4], [1, 5, 3, 9], [1, 3, 3, 5]], float)


def read(folder: Path) -> RunReader:
    run = RunReader(folder)
    run.update()
    return run


def test_a_run_is_read_as_arrays(tmp_path: Path) -> None:
    run = read(write_run(tmp_path, LOGITS, alerts=[make_alert(20)]))
    assert run.steps == [10, 20, 30]
    assert run.heads == [HeadName(layer, head) for layer in LAYERS for head in range(2)]
    assert np.array_equal(run.values("max_logit"), LOGITS)
    assert run.alerts == [make_alert(20)]
    assert not run.update()


def test_what_is_appended_is_read_once_and_incomplete_lines_wait(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    write_steps(log, LOGITS[:1], [10])
    run = read(tmp_path)
    line = encode_line({"step": 20, "layers": {}})
    with (tmp_path / STEPS).open("ab", buffering=0) as file:
        file.write(line[:-5])
        assert not run.update()
        file.write(line[-5:])
    assert run.update()
    assert run.steps == [10, 20]
    assert np.isnan(run.values("max_logit")[1]).all()
    log.close()


def test_a_run_that_resumes_is_read_again(tmp_path: Path) -> None:
    write_run(tmp_path, LOGITS, alerts=[make_alert(10), make_alert(30)])
    run = read(tmp_path)
    log = RunLog(tmp_path, 20)
    assert run.update()
    assert (run.steps, [alert.step for alert in run.alerts]) == ([10, 20], [10])
    write_steps(log, LOGITS[:1], [25])
    log.close()
    assert run.update()
    assert run.steps == [10, 20, 25]


def test_a_run_that_is_deleted_is_empty(tmp_path: Path) -> None:
    run = read(write_run(tmp_path, LOGITS))
    (tmp_path / STEPS).unlink()
    assert run.update()
    assert run.steps == []


def test_layers_may_come_and_go(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write(1, {"a": make_statistics([1.0])}, [])
    log.write(2, {"b": make_statistics([2.0, 3.0])}, [])
    log.close()
    run = read(tmp_path)
    assert run.heads == [HeadName("a", 0), HeadName("b", 0), HeadName("b", 1)]
    expected = np.array([[1, np.nan, np.nan], [np.nan, 2, 3]])
    assert np.array_equal(run.values("max_logit"), expected, equal_nan=True)
    assert not run.not_finite().any()


def test_blocks_end_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [encode_line({"step": step}) for step in range(9)]
    path.write_bytes(b"".join(lines))
    for size in range(len(lines[0]), 3 * len(lines[0])):
        found = list(LogFollower(path, advice=ADVICE, block_bytes=size).read())
        assert [(line.number, line.fields["step"]) for line in found] == [(at + 1, at) for at in range(9)]
    with pytest.raises(CheckpointError, match="line 1: damaged"):
        list(LogFollower(path, advice=ADVICE, block_bytes=len(lines[0]) - 1).read())


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        (STEPS, {"step": "1", "layers": {}}, "step: expected an integer"),
        (STEPS, {"step": 11, "layers": [], "more": 0}, "layers: expected an object"),
        (STEPS, {"step": 11, "layers": {}, "more": 0}, "unknown fields: more"),
        (STEPS, {"step": 11, "layers": {"a": {}}}, "no field 'layers.a.max_logit'"),
        (STEPS, {"step": 9, "layers": {}}, "step 9 follows step 10"),
        (ALERTS, make_alert(1)._asdict() | {"head": 1.5}, "head: expected an integer"),
        (ALERTS, make_alert(1)._asdict() | {"reason": None}, "reason: expected a string"),
        (ALERTS, {"step": 1}, "has no field 'rule'"),
    ],
)
def test_an_invalid_line_is_named(tmp_path: Path, name: str, line: dict[str, object], message: str) -> None:
    write_run(tmp_path, LOGITS[:1])
    with (tmp_path / name).open("ab") as file:
        file.write(encode_line(line))
    number = (tmp_path / name).read_bytes().count(b"\n")
    with pytest.raises(CheckpointError, match=message) as found:
        read(tmp_path)
    assert f"{name}, line {number}" in str(found.value)


@pytest.mark.parametrize("values", [[1, "2"], [1], [True, 1], [10**400, 1], [[1], 2]], ids=str)
def test_an_invalid_statistic_is_named(tmp_path: Path, values: list[object]) -> None:
    write_run(tmp_path, LOGITS[:1])
    line = json.loads((tmp_path / STEPS).read_bytes())
    del line["crc32"]
    line["layers"][LAYERS[1]]["entropy"] = values
    (tmp_path / STEPS).write_bytes(encode_line(line))
    with pytest.raises(CheckpointError, match=r"steps.jsonl, line 1: layers\..* expected"):
        read(tmp_path)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    content = (write_run(tmp_path, LOGITS) / STEPS).read_bytes()
    (tmp_path / STEPS).write_bytes(content.replace(b'"step": 20', b'"step": 21'))
    with pytest.raises(CheckpointError, match="line 2: damaged"):
        read(tmp_path)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"it has no steps\.jsonl"):
        RunReader(tmp_path)
    with pytest.raises(SettingError, match="it is not a folder"):
        RunReader(tmp_path / "nowhere")
    (tmp_path / STEPS).touch()
    os.mkfifo(tmp_path / ALERTS)
    with pytest.raises(CheckpointError, match="is not a file"):
        read(tmp_path)


def test_the_worst_heads_come_first(tmp_path: Path) -> None:
    logits = LOGITS.copy()
    logits[2, 0] = math.nan
    log = RunLog(tmp_path)
    for step, row in enumerate(logits):
        norms = [math.nan if math.isnan(row[0]) else 1.0, 1.0]
        parts = make_statistics(row[:2], max_key_norm=norms), make_statistics(row[2:])
        log.write(step, dict(zip(LAYERS, parts, strict=True)), [])
    log.close()
    first, *rest = summarize_run(read(tmp_path))
    assert (first.name, first.is_finite, first.peak) == (HeadName(LAYERS[0], 0), False, 1.0)
    assert [head.statistics["max_logit"] for head in rest] == [5, 3, 3]
    assert (rest[0].peak, rest[0].peak_step) == (9, 1)
    assert first.broken.tolist() == [0, 0, 1]


def test_runs_are_compared_at_the_last_step_of_both(tmp_path: Path) -> None:
    first = read(write_run(tmp_path / "a", LOGITS, alerts=[make_alert(20), make_alert(30, 0)]))
    second = read(write_run(tmp_path / "b", LOGITS[:2] + np.array([0, 1, 0, -4])))
    found = compare_runs(first, second)
    assert found.step == 20
    assert [head.difference for head in found.heads[:2]] == [-4, 1]
    alert = found.heads[0].first.first_alert
    assert alert is not None
    assert alert.step == 20
    assert all(one.second.first_alert is None for one in found.heads)
    with pytest.raises(SettingError, match="no measured step in common"):
        compare_runs(first, read(write_run(tmp_path / "c", LOGITS, every=7)))


def test_a_series_is_shortened_by_its_largest_values() -> None:
    values = np.random.default_rng(0).normal(size=1001).astype(np.float32)
    short = shorten_series(values, 24)
    assert len(short) == 24
    assert short.max() == values.max()
    assert np.array_equal(shorten_series(values[:24], 24), values[:24])
