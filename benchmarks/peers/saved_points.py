"""Keeps measured points in a folder, so that a comparison of hours can be interrupted and resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attnscope.errors import SettingError
from benchmarks.peers.capped_process import Outcome

SETTINGS_FILE = "settings.json"
NOT_MEASURED = "not measured"


class SavedPoints:
    """Outcomes by name: saved ones are read, others are measured and saved.

    Args:
        folder: Where they are saved; None saves nothing.
        minutes: Nothing new is measured later than this.
    """

    def __init__(self, folder: Path | None = None, minutes: float | None = None) -> None:
        self.folder = folder
        self._end = None if minutes is None else time.monotonic() + 60 * minutes

    def check(self, settings: Mapping[str, object]) -> None:
        """Save the settings of the measurement; raise if the saved points have other settings."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file, now = self.folder / SETTINGS_FILE, json.dumps(settings, indent=1)
        if file.exists() and file.read_text(encoding="utf-8") != now:
            raise SettingError(f"peers: {self.folder} has points of another model, limit or version; use a new folder")
        file.write_text(now, encoding="utf-8")

    def get(self, name: str, measure: Callable[[], Sequence[Outcome]]) -> list[Outcome]:
        """Return the saved outcomes of a point, or measure it; when the time is up, an outcome that says so."""
        file = None if self.folder is None else self.folder / f"{name}.json"
        if file is not None and file.exists():
            return [Outcome(*one) for one in json.loads(file.read_text(encoding="utf-8"))]
        if self._end is not None and time.monotonic() > self._end:
            return [Outcome(None, NOT_MEASURED, 0)]
        outcomes = list(measure())
        if file is not None:
            file.write_text(json.dumps(outcomes), encoding="utf-8")
        return outcomes
