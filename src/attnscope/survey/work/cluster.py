"""A connection to Ray that is quiet: to a cluster that is there, or to one of our own.

In: how many workers there will be. Out: a context in which Ray can be used. A cluster of our own ends with this
process. If that is killed, the system ends Ray's processes and the workers with it; two agents of Ray follow a minute
later.
Does not know: what is done. Memory: that of Ray's own processes.
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
from attnscope.survey.work.workers import Workers

STORE = 128 * 2**20  # bytes for Ray's objects: only places and counts pass through
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it calls nobody
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # it writes nothing to the terminal
}
STARTS = 5  # attempts: Ray gives its processes 15 seconds each, and a machine with much to do needs more at times


@contextmanager
def cluster(workers: Workers) -> Iterator[None]:
    """Be connected to Ray: as this process is already, or by an address, or to a cluster that is started for it."""
    with ExitStack() as stack:
        stack.enter_context(quiet())
        ray = import_extra("ray")
        if not ray.is_initialized():
            stack.enter_context(signals_as_they_are())  # Ray puts its own in their place
            stack.callback(ray.shutdown)
            _start(ray, workers)
        refuse_too_many(ray.cluster_resources(), workers)
        yield


def refuse_too_many(there: dict[str, float], workers: Workers) -> None:
    """Refuse what Ray would wait for without end.

    >>> refuse_too_many({"CPU": 2.0}, Workers(count=4, threads=1))
    Traceback (most recent call last):
    attnscope.errors.SettingError: survey: 4 workers with 1 CPU each were asked for, and Ray has 2 CPU; ask for fewer
    """
    for kind, each in (("CPU", workers.num_cpus), ("GPU", workers.gpus)):
        if workers.count * each > there.get(kind, 0):
            raise SettingError(
                f"survey: {workers.count} workers with {each:g} {kind} each were asked for, and Ray has "
                f"{there.get(kind, 0):g} {kind}; ask for fewer"
            )


def _start(ray: Any, workers: Workers) -> None:
    place: dict[str, Any] = {"address": workers.address}
    if workers.address is None:
        free = int(workers.count * workers.num_cpus) + 1  # one more than the workers hold, for what Ray does itself
        place = {"address": "local", "num_cpus": free, "object_store_memory": STORE}
    for attempt in range(1, STARTS + 1):
        try:
            with (
                environment(ENVIRONMENT),
                without_standard_error(),
            ):  # where Ray would say that it was told to be silent
                ray.init(**place, logging_level=logging.CRITICAL, log_to_driver=False)
            return
        except Exception as error:  # its errors have no common root
            ray.shutdown()
            if attempt == STARTS or "timed out during startup" not in str(error):
                first = str(error).strip().partition("\n")[0]
                where = "could not be started" if workers.address is None else f"at {workers.address} does not answer"
                raise SettingError(f"survey: Ray {where}: {first}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """No lines and no warnings of Ray's own on the terminal: what goes wrong is raised."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"ray\b")
        import_extra("ray.data")  # which arranges its loggers, so that it comes first
        for name in ("ray", "ray.data"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        yield


@contextmanager
def signals_as_they_are() -> Iterator[None]:
    """Whatever is done to the handler of SIGTERM, it is the same afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Variables that the processes started meanwhile are given."""
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
def without_standard_error() -> Iterator[None]:
    """Nothing that this process writes to standard error is seen, in whatever language it is written."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
