"""Peak memory of a function, measured in a separate process. Linux only: it reads /proc."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from attnscope.errors import UnsupportedError

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_extra_bytes(prepare: Callable[..., Callable[[], object]], *arguments: object) -> int:
    """Measure the peak memory of a function above the memory before it runs.

    Args:
        prepare: Called with `arguments`; returns the function to measure. It must be a module-level function, because a
            fresh process imports it. It should also run the work once at a small size, so that memory that libraries
            allocate on first use does not count.
        *arguments: Arguments of `prepare`.

    Returns:
        The extra bytes.
    """
    return in_fresh_process(_extra_bytes, prepare, *arguments)


def with_peak_bytes(work: Callable[..., object], *arguments: object) -> tuple:
    """Run `work(*arguments)` in a separate process; return its result and the peak bytes of the whole process."""
    return in_fresh_process(_result_and_peak, work, *arguments)


def in_fresh_process(function: Callable, *arguments: object):
    """Run `function(*arguments)` in a fresh process; return its result or raise its error."""
    if not CLEAR.exists():
        raise UnsupportedError(f"peak memory is measured through {CLEAR}, which this system does not have; use Linux")
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=_send_result, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        result = RuntimeError("the measured process died without a result; it may have run out of memory")
    process.join()
    if isinstance(result, BaseException):
        raise result
    return result


def _send_result(pipe: Connection, function: Callable, arguments: tuple) -> None:
    try:
        pipe.send(function(*arguments))
    except BaseException as error:  # the parent raises it
        pipe.send(error)
        raise


def _extra_bytes(prepare: Callable[..., Callable[[], object]], *arguments: object) -> int:
    work = prepare(*arguments)
    CLEAR.write_text("5")  # resets the peak
    before = _kilobytes("VmRSS")
    work()
    return (_kilobytes("VmHWM") - before) * 1024


def _result_and_peak(work: Callable[..., object], *arguments: object) -> tuple:
    return work(*arguments), _kilobytes("VmHWM") * 1024


def _kilobytes(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])
