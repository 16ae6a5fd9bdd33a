"""Progress bars on standard error, so that standard output can be piped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def stderr_progress() -> Iterator[Progress]:
    """Show transient progress bars; a plain line now and then if standard error is not a terminal."""
    from attnscope.progress import ProgressBar

    with ProgressBar() as bar:
        yield bar
