"""Many threads that lock one folder at the same moment."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from attnscope.errors import SettingError


def locked_at_once(lock: Callable[[], AbstractContextManager[object]], num_threads: int = 8) -> int:
    """How many of the threads get a lock that all of them try to hold until every one has tried."""
    ready, done, got = threading.Barrier(num_threads), threading.Barrier(num_threads), list[bool]()

    def start() -> None:
        with ExitStack() as held:
            ready.wait()
            try:
                held.enter_context(lock())
                got.append(True)
            except SettingError:
                pass
            done.wait()

    threads = [threading.Thread(target=start) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(got)
