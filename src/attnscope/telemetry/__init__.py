"""Exact attention statistics of a training run: measured, merged over ranks, logged, alerted and clipped."""

from attnscope.telemetry.callbacks import WatchCallback
from attnscope.telemetry.watcher import Watch

watch = Watch

__all__ = ["Watch", "WatchCallback", "watch"]
