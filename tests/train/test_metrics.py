"""What a run writes down: each step once, whatever happened in between, for people and for TensorBoard."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnscope.errors import CheckpointError
from attnscope.heads.over_training import METRICS
from attnscope.models.checked_log import read_log
from attnscope.train import train
from attnscope.train.metrics import CHECKPOINT, EVENTS, MetricsWriter, keep_up_to_checkpoint
from tests.train.torchrun import curve, small, write_text


def steps(folder: Path) -> list[int]:
    return [line["step"] for _, line in read_log(folder / METRICS, advice="") if CHECKPOINT not in line]


def written(folder: Path, until: int, after: int = 0) -> list[str]:
    """Write losses of some steps as a run does, with checkpoints at multiples of five; returns what is reported."""
    reports: list[str] = []
    metrics = MetricsWriter(folder, after, reports.append)
    for step in range(after + 1, until + 1):
        metrics.write(step, loss=1.0 / step, grad_norm=float(step))
        if step % 5 == 0:
            metrics.mark_checkpoint(step)
    metrics.write(until, sample=f"written after {until}")
    metrics.close()
    return reports


def resume(folder: Path, step: int) -> list[str]:
    reports: list[str] = []
    keep_up_to_checkpoint(folder / METRICS, step, reports.append)
    return reports


def test_each_line_is_there_at_once(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path, 0, print)
    metrics.write(1, loss=0.5)
    assert (tmp_path / METRICS).read_text(encoding="utf-8") == '{"step": 1, "loss": 0.5, "crc32": "8b97f1ca"}\n'
    metrics.close()


def test_a_run_that_goes_on_forgets_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    written(tmp_path, 9)
    assert written(tmp_path, 8, after=5) == []
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8, 8]


def test_a_run_that_goes_back_two_checkpoints_forgets_both(tmp_path: Path) -> None:
    written(tmp_path, 12)
    resume(tmp_path, 5)
    assert steps(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("left", [b'{"step": 6, "lo', b'{"st', b"\0\0\0", b"[1]", b'{"step": 6, "loss": 3.0}\n{"s'])
def test_an_incomplete_line_after_the_checkpoint_is_removed_and_reported(left: bytes, tmp_path: Path) -> None:
    written(tmp_path, 5)
    with (tmp_path / METRICS).open("ab") as file:
        file.write(left)
    reports = resume(tmp_path, 5)
    assert [f"line {8 + number}" in report for number, report in enumerate(reports)] == [True] * len(left.splitlines())
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    assert [path.name for path in tmp_path.iterdir() if path.name != EVENTS] == [METRICS]


def test_every_flipped_bit_before_the_checkpoint_is_found(tmp_path: Path) -> None:
    written(tmp_path, 5)
    resume(tmp_path, 5)
    whole = (tmp_path / METRICS).read_bytes()
    for place in range(len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (tmp_path / METRICS).write_bytes(damaged)
        with pytest.raises(CheckpointError, match="copy the file again, or delete it to resume without") as refused:
            resume(tmp_path, 5)
        number = 1 + whole[:place].count(b"\n")
        assert f"line {number}" in str(refused.value)
        assert (tmp_path / METRICS).read_bytes() == damaged


def test_every_lost_end_is_found(tmp_path: Path) -> None:
    written(tmp_path, 5)
    resume(tmp_path, 5)
    whole = (tmp_path / METRICS).read_bytes()
    for length in range(len(whole) - 1):
        (tmp_path / METRICS).write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="has lost the mark of the checkpoint of step 5"):
            resume(tmp_path, 5)
    (tmp_path / METRICS).write_bytes(whole[:-1])  # only the line break
    resume(tmp_path, 5)
    assert (tmp_path / METRICS).read_bytes() == whole


def test_a_run_whose_metrics_were_deleted_goes_on_and_reports_it(tmp_path: Path) -> None:
    assert resume(tmp_path, 5) == [f"{tmp_path / METRICS} is missing: the metrics begin after step 5"]
    assert not (tmp_path / METRICS).exists()
    assert resume(tmp_path, 0) == []


def test_damaged_metrics_end_a_run_that_resumes(tmp_path: Path) -> None:
    recipe = small("rotary", write_text(tmp_path), steps=4, checkpoint_every=2)
    train(recipe, tmp_path / "run", progress=False)
    path = tmp_path / "run" / METRICS
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"step": 1', b'"step": 3', 1))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl, line \d+: damaged"):
        train(recipe, tmp_path / "run", progress=False)
    path.write_bytes(whole)
    assert train(recipe, tmp_path / "run", progress=False).step == 4
    assert path.read_bytes() == whole


def test_a_run_that_begins_again_forgets_all(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    recipe = small("rotary", text, steps=2, evaluate_every=1)
    for _ in range(2):  # without a checkpoint, as if it had been killed before the first one
        train(recipe, tmp_path / "run", progress=False)
    assert list(curve(tmp_path / "run", "validation_loss")) == [0, 1, 2]


def test_tensorboard_reads_the_curve_of_one_run(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    written(tmp_path, 9)
    written(tmp_path, 8, after=5)
    events = accumulators.EventAccumulator(str(tmp_path / EVENTS))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["grad_norm", "loss"]
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [event.value for event in events.Scalars("grad_norm")] == [1, 2, 3, 4, 5, 6, 7, 8]
    (sample,) = [event for event in events.Tensors("sample/text_summary") if event.step == 8]
    assert sample.tensor_proto.string_val == [b"written after 8"]
