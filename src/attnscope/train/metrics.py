"""The curve of a run: a line of JSON for each thing that was measured, and the same for TensorBoard.

In: a step and what was found at it. Out: metrics.jsonl and events/ in the folder of the run. A run that goes on from a
checkpoint first forgets what came after it, so that the curve is that of one run.
Does not know: what is measured. Memory: O(1).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from attnscope.errors import MissingExtraError
from attnscope.extras import import_extra

FILE = "metrics.jsonl"
EVENTS = "events"


class MetricsWriter:
    """Writes what was found; TensorBoard's files only where it is installed."""

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
        """Keep what was found after a step, at once: a run may be killed at any time."""
        print_line(self._lines, {"step": step, **found})
        if self._events is not None:
            for name, value in found.items():
                if isinstance(value, str):
                    self._events.add_text(name, value, step)
                else:
                    self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Write out what is held back."""
        self._lines.close()
        if self._events is not None:
            self._events.close()


def print_line(file: Any, found: dict[str, Any]) -> None:
    """One line, whole or not there."""
    file.write(json.dumps(found) + "\n")
    file.flush()


def truncate_after(path: Path, step: int) -> None:
    """Leave out the lines of later steps, and a last line that was cut off."""
    if path.exists():
        kept = [line for line in path.read_text(encoding="utf-8").splitlines() if is_until(line, step)]
        scratch = path.with_name(path.name + ".new")
        scratch.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        os.replace(scratch, path)


def is_until(line: str, step: int) -> bool:
    """Whether a line tells of a step up to this one."""
    try:
        return int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False
