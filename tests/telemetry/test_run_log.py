"""The folder of a run holds every measured step once, also after a kill."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from attnscope.errors import CheckpointError
from attnscope.telemetry.alerts import Alert
from attnscope.telemetry.run_log import ALERTS, PARQUET, STEPS, RunLog, read_alerts, read_steps
from attnscope.telemetry.statistics import HeadStatistics


def statistics(value: float) -> HeadStatistics:
    return HeadStatistics(*(np.array([value, at]) for at in range(len(HeadStatistics._fields))))


def alert(step: int) -> Alert:
    return Alert(step, "not finite", "attention", 1, math.nan, "a query or key contains NaN or infinity", 0, 0, 3, 2)


def write(folder: Path, steps: range, resume: int = 0) -> None:
    log = RunLog(folder, resume)
    for step in steps:
        log.write(step, {"attention": statistics(step / 3)}, [alert(step)] if step % 4 == 0 else [])
    log.close()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    found = list(read_steps(tmp_path))
    assert [one.step for one in found] == [1, 2, 3]
    assert np.allclose(found[0].layers["attention"].max_logit, [1 / 3, 0], rtol=1e-6)


def test_numbers_that_are_not_finite_survive(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write(4, {"attention": statistics(math.nan)}, [alert(4)])
    log.close()
    assert np.isnan(next(read_steps(tmp_path)).layers["attention"].max_logit[0])
    (found,) = read_alerts(tmp_path)
    assert found._replace(value=0.0) == alert(4)._replace(value=0.0)
    assert math.isnan(found.value)


def test_a_resumed_run_has_no_gap_and_no_duplicate(tmp_path: Path) -> None:
    write(tmp_path, range(1, 8))
    for name in (STEPS, ALERTS):  # a kill leaves an incomplete line
        with (tmp_path / name).open("ab") as file:
            file.write(b'{"step": 8, "la')
    write(tmp_path, range(5, 10), resume=4)
    assert [one.step for one in read_steps(tmp_path)] == list(range(1, 10))
    assert [one.step for one in read_alerts(tmp_path)] == [4, 8]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    content = (tmp_path / STEPS).read_bytes().split(b"\n")
    content[1] = content[1].replace(b"0.6666667", b"0.6666668")
    (tmp_path / STEPS).write_bytes(b"\n".join(content))
    with pytest.raises(CheckpointError, match="line 2"):
        list(read_steps(tmp_path))
    with pytest.raises(CheckpointError, match="line 2"):
        RunLog(tmp_path, 3)


def test_the_table_has_a_row_for_each_step_and_head(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write(tmp_path, range(1, 4))
    table = parquet.read_table(tmp_path / PARQUET).to_pylist()
    assert [(row["step"], row["layer"], row["head"]) for row in table[:3]] == [
        (1, "attention", 0),
        (1, "attention", 1),
        (2, "attention", 0),
    ]
