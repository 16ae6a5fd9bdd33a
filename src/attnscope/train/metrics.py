"""The metrics of a run, as JSON lines and for TensorBoard.

In: a step and its metrics. Out: metrics.jsonl, whose lines have checksums, and events/ in the folder of the run. A line
marks each checkpoint; a run that resumes from it keeps the lines up to that one.
Does not know: what is measured. Memory: that of metrics.jsonl, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnscope.atomic_files import write_atomically
from attnscope.errors import CheckpointError, MissingExtraError
from attnscope.extras import import_extra
from attnscope.heads.over_training import METRICS
from attnscope.models.checked_log import MAX_BYTES, damaged_line_error, encode_line, split_lines
from attnscope.models.json_files import read_bytes

EVENTS = "events"
CHECKPOINT = "checkpoint"
"""The field of lines that mark a checkpoint."""
ADVICE = "copy the file again, or delete it to resume without the metrics so far"


class MetricsWriter:
    """Writes metrics.jsonl and, if TensorBoard is installed, its event files.

    Args:
        folder: The folder of the run.
        step: The step to resume after, 0 for a new run: metrics of later steps are removed.
        report: Called with one sentence if something other than those is missing.

    Raises:
        CheckpointError: The metrics up to this step are damaged.
    """

    def __init__(self, folder: Path, step: int, report: Callable[[str], object]):
        keep_up_to_checkpoint(folder / METRICS, step, report)
        self._lines = (folder / METRICS).open("ab")
        self._events = None
        try:
            import_extra("tensorboard")
        except MissingExtraError:
            return
        from torch.utils.tensorboard import SummaryWriter

        self._events = SummaryWriter(str(folder / EVENTS), purge_step=step + 1 if step else 0)

    def write(self, step: int, **found: float | str) -> None:
        """Write metrics of a step and flush them: a run may be killed at any time."""
        self.write_line(step, **found)
        if self._events is not None:
            for name, value in found.items():
                if isinstance(value, str):
                    self._events.add_text(name, value, step)
                else:
                    self._events.add_scalar(name, value, step)

    def write_line(self, step: int, **found: Any) -> None:
        """Write a line to metrics.jsonl alone, and flush it."""
        self._lines.write(encode_line({"step": step, **found}))
        self._lines.flush()

    def mark_checkpoint(self, step: int) -> None:
        """Mark a checkpoint that is about to be written, and write all lines so far to disk."""
        self.write_line(step, **{CHECKPOINT: True})
        os.fsync(self._lines.fileno())

    def close(self) -> None:
        """Flush and close all files."""
        self._lines.close()
        if self._events is not None:
            self._events.close()


def keep_up_to_checkpoint(path: Path, step: int, report: Callable[[str], object]) -> None:
    """Remove the lines after the mark of a checkpoint, or all for step 0.

    Raises:
        CheckpointError: The mark is missing, or a line before it is damaged.
    """
    if not path.exists():
        if step:
            report(f"{path} is missing: the metrics begin after step {step:,}")
        return
    if not step:
        write_atomically(path, b"")
        return
    content = read_bytes(path, MAX_BYTES)
    damaged: list[int] = []
    kept: int | None = None
    for line in split_lines(content):
        if line.fields is None:
            damaged.append(line.number)
        elif line.fields.get(CHECKPOINT) and line.fields.get("step") == step:
            if damaged:
                raise damaged_line_error(path, damaged[0], ADVICE)
            kept = line.stop
    if kept is None:
        where = f" (line {damaged[0]} is damaged)" if damaged else ""
        raise CheckpointError(f"{path} has lost the mark of the checkpoint of step {step:,}{where}; {ADVICE}")
    for number in damaged:
        report(f"{path}: removed line {number}, which is incomplete and after the checkpoint of step {step:,}")
    write_atomically(path, content[:kept] + b"\n")
