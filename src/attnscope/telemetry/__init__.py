"""Exact attention statistics of a training run: measured, merged over ranks, logged, alerted and clipped."""

from attnscope.telemetry.alerts import (
    RULES,
    Alert,
    DeadHead,
    EntropyCollapse,
    GrowingLogit,
    LargeLogit,
    NotFinite,
    Rule,
)
from attnscope.telemetry.callbacks import WatchCallback
from attnscope.telemetry.clip import ClippedHead
from attnscope.telemetry.run_log import LoggedStep, read_alerts, read_steps
from attnscope.telemetry.statistics import HeadStatistics
from attnscope.telemetry.watcher import Report, Watch, watch

__all__ = [
    "RULES",
    "Alert",
    "ClippedHead",
    "DeadHead",
    "EntropyCollapse",
    "GrowingLogit",
    "HeadStatistics",
    "LargeLogit",
    "LoggedStep",
    "NotFinite",
    "Report",
    "Rule",
    "Watch",
    "WatchCallback",
    "read_alerts",
    "read_steps",
    "watch",
]
