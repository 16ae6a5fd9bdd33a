"""A connection to Ray without its output: to a running cluster, or to one that is started for this process.

In: the number of workers. Out: a context in which Ray can be used. A cluster that was started here ends with this
process. If this process is killed, the system ends Ray's processes and the workers; two agents of Ray end a minute
later.
Does not know: the tasks. Memory: that of Ray's own processes.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from attnscope.errors import SettingError
from attnscope.extras import import_extra
from attnscope.survey.execution.workers import Workers

OBJECT_STORE_BYTES = 128 * 2**20  # only paths and counts are sent
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no network access
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # nothing on the terminal
}
MAX_START_ATTEMPTS = 5  # Ray gives its processes 15 seconds each, and a busy machine sometimes needs more


@contextmanager
def connect_to_ray(workers: Workers) -> Iterator[None]:
    """Use the connection of this process, connect to `workers.address`, or start a local cluster."""
    with ExitStack() as stack:
        stack.enter_context(silence_ray())
        ray = import_extra("ray")
        if not ray.is_initialized():
            stack.enter_context(preserve_sigterm())  # Ray installs its own handler
            stack.callback(ray.shutdown)
            _start(ray, workers)
        check_resources(ray.cluster_resources(), workers)
        yield


def check_resources(available: dict[str, float], workers: Workers) -> None:
    """Raise an error if Ray has fewer CPUs or GPUs than the workers need: it would wait forever.

    >>> check_resources({"CPU": 2.0}, Workers(count=4, threads=1))
    Traceback (most recent call last):
    attnscope.errors.SettingError: survey: 4 workers need 1 CPU each, but Ray has 2 CPU; use fewer workers
    """
    for kind, each in (("CPU", workers.num_cpus), ("GPU", workers.gpus)):
        if workers.count * each > available.get(kind, 0):
            raise SettingError(
                f"survey: {workers.count} workers need {each:g} {kind} each, but Ray has "
                f"{available.get(kind, 0):g} {kind}; use fewer workers"
            )


def _start(ray: Any, workers: Workers) -> None:
    options: dict[str, Any] = {"address": workers.address}
    if workers.address is None:
        num_cpus = int(workers.count * workers.num_cpus) + 1  # one more than the workers use, for Ray itself
        options = {"address": "local", "num_cpus": num_cpus, "object_store_memory": OBJECT_STORE_BYTES}
    for attempt in range(1, MAX_START_ATTEMPTS + 1):
        try:
            with set_environment(ENVIRONMENT), suppress_stderr():
                ray.init(**options, logging_level=logging.CRITICAL, log_to_driver=False)
            return
        except Exception as error:  # its errors have no common base class
            ray.shutdown()
            if attempt == MAX_START_ATTEMPTS or "timed out during startup" not in str(error):
                first = str(error).strip().partition("\n")[0]
                task = "start Ray" if workers.address is None else f"connect to Ray at {workers.address}"
                raise SettingError(f"survey: cannot {task}: {first}") from error


@contextmanager
def silence_ray() -> Iterator[None]:
    """Suppress log lines and warnings of Ray; errors are still raised."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"ray\b")
        import_extra("ray.data")  # configures its loggers on import
        for name in ("ray", "ray.data"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        yield


@contextmanager
def preserve_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM at the end."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def set_environment(changes: dict[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started in this context."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def suppress_stderr() -> Iterator[None]:
    """Discard what this process writes to standard error, also from C++."""
    original, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(devnull)
