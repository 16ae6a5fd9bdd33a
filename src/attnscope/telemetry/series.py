"""The series of measured steps of a run, and the alerts that rules raise in it.

In: the statistics of each step. Out: new alerts. A run that resumes replays its last steps, and rules go on from there.
Does not know: models, files. Memory: the last steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from attnscope.telemetry.alerts import Alert, AlertLog, History, Rule
from attnscope.telemetry.run_log import LoggedStep
from attnscope.telemetry.statistics import concatenate

LENGTH = 64
"""The number of steps that rules can look back on."""


class Series:
    """The last measured steps of a run.

    Args:
        rules: When to raise an alert.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self.heads: list[tuple[str, int]] = []
        self._history = History(LENGTH)
        self._alerts = AlertLog([], rules)

    def add(self, logged: LoggedStep) -> list[Alert]:
        """Add a step, and return the alerts that are new in it."""
        heads = [(name, head) for name, part in logged.layers.items() for head in range(len(part.max_logit))]
        if heads != self.heads:  # the first step, or another model
            self.heads, self._history, self._alerts = heads, History(LENGTH), AlertLog(heads, self._rules)
        self._history.add(logged.step, concatenate(list(logged.layers.values())))
        return self._alerts.check(self._history)

    def replay(self, steps: Iterable[LoggedStep]) -> None:
        """Add the last of the steps that were already logged, without new alerts."""
        for logged in deque(steps, LENGTH):
            self.add(logged)
