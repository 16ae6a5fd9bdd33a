"""What a run writes down: each step once, whatever happened in between, for people and for TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnscope.train import train
from attnscope.train.metrics import EVENTS, FILE, MetricsWriter, truncate_after
from tests.train.torchrun import curve, small, write_text


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / FILE).read_text(encoding="utf-8").splitlines()]


def written(folder: Path, until: int, start: int = 1) -> None:
    """Losses of some steps, as a run writes them."""
    metrics = MetricsWriter(folder, start - 1)
    for step in range(start, until + 1):
        metrics.write(step, loss=1.0 / step, grad_norm=float(step))
    metrics.write(until, sample=f"written after {until}")
    metrics.close()


def test_each_line_is_there_at_once(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path, 0)
    metrics.write(1, loss=0.5)
    assert (tmp_path / FILE).read_text(encoding="utf-8") == '{"step": 1, "loss": 0.5}\n'
    metrics.close()


def test_a_run_that_goes_on_forgets_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    written(tmp_path, 9)
    written(tmp_path, 8, start=6)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8, 8]


@pytest.mark.parametrize("left", ['{"step": 3, "lo', '{"step": 3', '{"st', "\x00\x00\x00", "[1]", '{"loss": 3}', "3"])
def test_a_line_that_was_cut_off_is_left_out(left: str, tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text('{"step": 1}\n{"step": 2}\n' + left, encoding="utf-8")
    truncate_after(path, 2)
    assert path.read_text(encoding="utf-8") == '{"step": 1}\n{"step": 2}\n'
    assert [left.name for left in tmp_path.iterdir()] == [FILE]


def test_a_run_without_metrics_begins_with_none(tmp_path: Path) -> None:
    truncate_after(tmp_path / FILE, 5)
    assert not (tmp_path / FILE).exists()


def test_a_run_that_begins_again_forgets_all(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    recipe = small("rotary", text, steps=2, evaluate_every=1)
    for _ in range(2):  # without a checkpoint, as if it had been killed before the first one
        train(recipe, tmp_path / "run", progress=False)
    assert list(curve(tmp_path / "run", "validation_loss")) == [0, 1, 2]


def test_tensorboard_reads_the_curve_of_one_run(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    written(tmp_path, 9)
    written(tmp_path, 8, start=6)
    events = accumulators.EventAccumulator(str(tmp_path / EVENTS))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["grad_norm", "loss"]
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [event.value for event in events.Scalars("grad_norm")] == [1, 2, 3, 4, 5, 6, 7, 8]
    (sample,) = [event for event in events.Tensors("sample/text_summary") if event.step == 8]
    assert sample.tensor_proto.string_val == [b"written after 8"]
