"""Where a command is asked to write: refused before it begins to work, not after."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnscope.errors import SettingError


def check_file(place: str | None, *, asked_by: str) -> None:
    """Refuse a place where no file can be written; `-` is standard output, and None is no file at all."""
    if place is None or place == "-":
        return
    path = Path(place).absolute()
    if os.path.isdir(path):  # which is False, and no error, inside of folders that may not be entered
        raise SettingError(f"{asked_by}: {place} is a folder; give a file in it, as {Path(place) / 'name'}")
    if not os.path.isdir(path.parent):
        raise SettingError(f"{asked_by}: {place} cannot be written, as there is no folder {path.parent}")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise SettingError(f"{asked_by}: {place} cannot be written here without permission; give another place")


@contextmanager
def writing(place: str | Path, *, asked_by: str) -> Iterator[None]:
    """Say in one line why something could not be written after all."""
    try:
        yield
    except BrokenPipeError:  # whoever reads standard output has left, which is no mistake
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingError(f"{asked_by}: {place} cannot be written: {reason}; give another place") from error
