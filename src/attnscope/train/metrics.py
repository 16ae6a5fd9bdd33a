"""The metrics of a run, as JSON lines and for TensorBoard.

In: a step and its metrics. Out: metrics.jsonl and events/ in the folder of the run. A run that resumes from a
checkpoint first removes the metrics of later steps.
Does not know: what is measured. Memory: O(1).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attnscope.atomic_files import write_atomically
from attnscope.errors import MissingExtraError
from attnscope.extras import import_extra

FILE = "metrics.jsonl"
EVENTS = "events"


class MetricsWriter:
    """Writes metrics.jsonl and, if TensorBoard is installed, its event files.

    Args:
        folder: The folder of the run.
        step: The step to resume after: metrics of later steps are removed.
    """

    def __init__(self, folder: Path, step: int):
        truncate_after(folder / FILE, step)
        self._lines = (folder / FILE).open("a", encoding="utf-8")
        self._events = None
        try:
            import_extra("tensorboard")
        except MissingExtraError:
            return
        from torch.utils.tensorboard import SummaryWriter

        self._events = SummaryWriter(str(folder / EVENTS), purge_step=step + 1)

    def write(self, step: int, **found: float | str) -> None:
        """Write metrics of a step and flush them: a run may be killed at any time."""
        write_line(self._lines, {"step": step, **found})
        if self._events is not None:
            for name, value in found.items():
                if isinstance(value, str):
                    self._events.add_text(name, value, step)
                else:
                    self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close all files."""
        self._lines.close()
        if self._events is not None:
            self._events.close()


def write_line(file: Any, found: dict[str, Any]) -> None:
    """Write one line of JSON and flush it."""
    file.write(json.dumps(found) + "\n")
    file.flush()


def truncate_after(path: Path, step: int) -> None:
    """Remove the lines of later steps, and an incomplete last line."""
    if path.exists():
        kept = [line for line in path.read_text(encoding="utf-8").splitlines() if is_up_to(line, step)]
        write_atomically(path, "".join(line + "\n" for line in kept).encode("utf-8"))


def is_up_to(line: str, step: int) -> bool:
    """Whether a line is complete and of this step or an earlier one."""
    try:
        return int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False
