"""Opens one input within limits, and tells what went wrong; minimises and keeps such inputs.

Expected are success, and errors of AttnScope. Everything else is a finding: another exception, more than 5 seconds of
CPU time or a minute in all, or more memory than the limit.
"""

from __future__ import annotations

import hashlib
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from attnscope.errors import AttnScopeError
from scripts.fuzzing.mutations import mutate_bytes, mutate_files, pack, unpack, write_folder
from scripts.fuzzing.openers import Opener

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz_corpus"
MAX_CPU_SECONDS = 5
MAX_SECONDS = 60  # an input that waits takes no CPU time, and a busy machine is slow
MAX_EXTRA_BYTES = 3 * 2**30
"""What an input may make a process allocate, in addressable memory: files here have some kilobytes."""
MAX_KEPT_BYTES = 20_000


@dataclass(frozen=True)
class Finding:
    """What went wrong with an input."""

    signature: str
    """The exception and the line of AttnScope that raised it: inputs with the same signature are one finding."""
    text: str


class HangError(BaseException):
    """An input takes too long; no handler for `Exception` catches it."""


def try_input(opener: Opener, blob: bytes) -> Finding | None:
    """Open an input; None if it opens, or is refused with an error of AttnScope."""
    files = unpack(blob)
    if files is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        try:
            write_folder(files, folder)
        except (OSError, ValueError):  # names that no folder can have
            return None
        with _time_limit():
            opener.open(folder)
    except AttnScopeError:
        return None
    except (Exception, HangError) as error:
        return Finding(_signature(error), "".join(traceback.format_exception(error)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def minimise(opener: Opener, blob: bytes, signature: str, seconds: float = 20.0) -> bytes:
    """Remove bytes and files of an input, as long as the same goes wrong."""
    deadline, files = time.monotonic() + seconds, unpack(blob) or {}

    def is_same(changed: dict[str, bytes]) -> bool:
        found = try_input(opener, pack(changed))
        return found is not None and found.signature == signature

    for name in sorted(files):
        if is_same(smaller := {other: content for other, content in files.items() if other != name}):
            files = smaller
    for name in sorted(files):
        size = len(files[name]) // 2
        while size:
            start = 0
            while start < len(files[name]):
                if time.monotonic() > deadline:
                    return pack(files)
                cut = files[name][:start] + files[name][start + size :]
                if is_same(files | {name: cut}):
                    files[name] = cut
                else:
                    start += size
            size //= 2
    return pack(files)


def keep(opener: Opener, blob: bytes) -> Path | None:
    """Write an input to the corpus of the tests; None if it is too large."""
    if len(blob) > MAX_KEPT_BYTES:
        return None
    path = CORPUS / opener.name / f"{hashlib.sha256(blob).hexdigest()[:12]}.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blob)
    return path


def limit_memory() -> None:
    """Limit the memory of this process to what it has, and `MAX_EXTRA_BYTES`."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_EXTRA_BYTES, resource.RLIM_INFINITY))


def mutate(blob: bytes, seed: int) -> bytes:
    """A mutated input, without libFuzzer."""
    dice, files = random.Random(seed), unpack(blob)
    return blob if not files else pack(mutate_files(files, dice, lambda content: mutate_bytes(content, dice)))


def _signature(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = next((frame for frame in reversed(frames) if "/attnscope/" in frame.filename), frames[-1])
    return f"{type(error).__name__} at {own.filename.rpartition('/attnscope/')[2]}:{own.lineno}"


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(number: int, _: object) -> None:
        limit = f"{MAX_CPU_SECONDS} seconds of CPU time" if number == signal.SIGPROF else f"{MAX_SECONDS} seconds"
        raise HangError(f"more than {limit}")

    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
