"""A connection to Ray without its output: to a running cluster, or to one that is started for this process.

In: the number of workers. Out: a context in which Ray can be used. A cluster that was started here ends with this
process. If this process is killed, the system ends Ray's processes and the workers; two agents of Ray end a minute
later.
Does not know: the tasks. Memory: that of Ray's own processes.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attnscope.errors import SettingError
from attnscope.extras import import_extra
from attnscope.stores.retries import retry_access
from attnscope.survey.execution.workers import Workers

OBJECT_STORE_BYTES = 128 * 2**20  # only paths and counts are sent
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no network access
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # nothing on the terminal
    "RAY_gcs_server_port_wait_time_s": "120",  # instead of 30: a busy machine sometimes needs more
}
START_SECONDS = 900.0  # to start Ray, which gives up an attempt after 30 seconds or more
CONNECT_SECONDS, CONNECT_DELAYS = 3.0, (1.0, 1.0)  # for the address of a running cluster, and before each retry
REPORT_SECONDS = 60.0  # between lines that say what is waited for
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray's variable for clusters of one machine, on any system


@contextmanager
def connect_to_ray(workers: Workers) -> Iterator[None]:
    """Use the connection of this process, connect to `workers.address`, or start a local cluster."""
    with ExitStack() as stack:
        stack.enter_context(silence_ray())
        ray = import_extra("ray")
        if not ray.is_initialized():
            stack.enter_context(preserve_sigterm())  # Ray installs its own handler
            stack.callback(ray.shutdown)
            start_ray(ray, workers)
            if workers.address is None:  # any other cluster may grow
                check_resources(ray.cluster_resources(), workers)
        yield


def check_resources(available: dict[str, float], workers: Workers) -> None:
    """Raise an error if a cluster that cannot grow has fewer CPUs or GPUs than the workers need.

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


def check_address(address: str) -> None:
    """Raise an error if nothing listens at the address of a cluster: Ray would try for a quarter of an hour.

    Args:
        address: HOST:PORT, ray://HOST:PORT, or auto, which is the address in the variable RAY_ADDRESS, or else that of
            the latest cluster on this machine.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or _latest_address() or "auto"
    if address in ("auto", "local"):
        return  # Ray has its own message
    try:
        place = urlsplit(address if "://" in address else f"ray://{address}")
        host, port = place.hostname, place.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise SettingError(f"survey: expected the address of a Ray cluster as HOST:PORT or auto, got {address!r}")
    try:
        retry_access(lambda: socket.create_connection((host, port), CONNECT_SECONDS).close(), delays=CONNECT_DELAYS)
    except OSError as error:
        raise SettingError(
            f"survey: cannot connect to Ray at {address}: {error.strerror or error}; start a cluster there "
            "with ray start --head, or correct the address"
        ) from error


def _latest_address() -> str | None:
    """The address that Ray would connect to; it may be of a cluster that has ended."""
    try:
        return import_extra("ray._private.services").canonicalize_bootstrap_address("auto")
    except Exception:  # there is none, or this version of Ray has no such function
        return None


def start_ray(ray: Any, workers: Workers) -> None:
    """Start a cluster for this process, or connect to `workers.address`.

    Args:
        ray: The module.
        workers: The number of workers, and the address of a running cluster.

    Raises:
        SettingError: Ray cannot be started or reached.
    """
    options: dict[str, Any] = {"address": workers.address}
    if workers.address is None:
        num_cpus = int(workers.count * workers.num_cpus) + 1  # one more than the workers use, for Ray itself
        options = {"address": "local", "num_cpus": num_cpus, "object_store_memory": OBJECT_STORE_BYTES}
    else:
        check_address(workers.address)
    task = "start Ray" if workers.address is None else f"connect to Ray at {workers.address}"
    start = time.monotonic()
    before = ray_processes()
    while True:
        try:
            with ExitStack() as stack:
                stack.enter_context(set_environment(ENVIRONMENT))
                if workers.address is None:
                    stack.enter_context(use_loopback())
                stack.enter_context(report_waiting(task, start, stack.enter_context(suppress_stderr())))
                ray.init(**options, logging_level=logging.CRITICAL, log_to_driver=False)
            return
        except Exception as error:  # its errors have no common base class
            ray.shutdown()
            end_processes(ray_processes() - before)  # Ray forgets what it started before the error
            is_slow = workers.address is None and "timed out" in str(error).lower()
            if not is_slow or time.monotonic() - start >= START_SECONDS:
                first = str(error).strip().partition("\n")[0]
                raise SettingError(f"survey: cannot {task}: {first}") from error
        collect_processes()


def ray_processes() -> set[int]:
    """The processes of Ray that this one has started, and those that they have started; empty without /proc."""
    place = os.fsencode(Path(str(import_extra("ray").__file__)).parent)
    parents = {int(path.name): _parent(path) for path in Path("/proc").glob("[0-9]*")}
    found, level = set[int](), {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found |= level
    return {pid for pid in found if place in (line := _command_line(pid)) or line.startswith(b"ray::")}


def end_processes(pids: Iterable[int]) -> None:
    """Kill processes, and wait for those that are children of this one."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def collect_processes() -> None:
    """Delete Ray's handles of processes that have been killed; later, each would be a ResourceWarning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _parent(place: Path) -> int | None:
    try:
        return int((place / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:  # it has ended
        return None


def _command_line(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def use_loopback() -> Iterator[None]:
    """Let a cluster that is started in this context listen on 127.0.0.1 only, as Ray does on macOS and Windows."""
    constants: Any = import_extra("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER  # the variable, as it was when Ray was imported
    with set_environment(LOOPBACK):
        constants.ENABLE_RAY_CLUSTER = False
        try:
            yield
        finally:
            constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def report_waiting(task: str, start: float, descriptor: int) -> Iterator[None]:
    """Write a line to a file descriptor now and then, while this context lasts.

    Args:
        task: What is waited for, as an infinitive.
        start: When it began, in seconds of the monotonic clock.
        descriptor: Where to write to; standard error itself is suppressed meanwhile.
    """
    done = threading.Event()

    def report() -> None:
        while not done.wait(REPORT_SECONDS):
            os.write(descriptor, f"waiting to {task} for {time.monotonic() - start:.0f} seconds\n".encode())

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def silence_ray() -> Iterator[None]:
    """Suppress log lines and warnings of Ray; errors are still raised."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"ray\b")
        import_extra("ray")  # configures its loggers on import
        logger = logging.getLogger("ray")
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
def suppress_stderr() -> Iterator[int]:
    """Discard what this process writes to standard error, also from C++; the yielded descriptor still writes to it."""
    original, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield original
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(devnull)
