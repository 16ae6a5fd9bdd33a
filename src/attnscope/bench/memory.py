"""The peak memory of a piece of work, measured in a process of its own (Linux only: it reads /proc)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from attnscope.errors import UnsupportedError

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_extra_bytes(prepare: Callable[..., Callable[[], object]], *arguments: object) -> int:
    """How far memory rises above what it is before `prepare(*arguments)()` runs the work that it has made ready.

    `prepare` is a module-level function, since a fresh process imports it; it should also run the work once at a small
    size, so that what libraries load on first use does not count.
    """
    return in_fresh_process(_rise, prepare, *arguments)


def with_peak_bytes(work: Callable[..., object], *arguments: object) -> tuple:
    """What `work(*arguments)` returns in a process of its own, and the peak memory of that whole process."""
    return in_fresh_process(_whole, work, *arguments)


def in_fresh_process(function: Callable, *arguments: object):
    """`function(*arguments)` in a fresh process, with its result or its error."""
    if not CLEAR.exists():
        raise UnsupportedError(f"peak memory is measured through {CLEAR}, which this system does not have; use Linux")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        answer = RuntimeError("the measured process died without an answer; it may have run out of memory")
    process.join()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _answer(pipe: Connection, function: Callable, arguments: tuple) -> None:
    try:
        pipe.send(function(*arguments))
    except BaseException as error:  # the parent raises it
        pipe.send(error)
        raise


def _rise(prepare: Callable[..., Callable[[], object]], *arguments: object) -> int:
    work = prepare(*arguments)
    CLEAR.write_text("5")  # from now on the peak is counted anew
    before = _kilobytes("VmRSS")
    work()
    return (_kilobytes("VmHWM") - before) * 1024


def _whole(work: Callable[..., object], *arguments: object) -> tuple:
    return work(*arguments), _kilobytes("VmHWM") * 1024


def _kilobytes(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])
