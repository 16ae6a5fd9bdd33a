"""Checks output paths before a command starts its work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnscope.errors import SettingError


def check_output_file(file: str | None, *, command_name: str) -> None:
    """Raise if a file cannot be written; `-` is standard output, and None is no file."""
    if file is None or file == "-":
        return
    path = Path(file).absolute()
    if os.path.isdir(path):  # returns False without permission, where Path.is_dir raises
        raise SettingError(f"{command_name}: {file} is a folder; expected a file, such as {Path(file) / 'name'}")
    if not os.path.isdir(path.parent):
        raise SettingError(f"{command_name}: {file} cannot be written: folder {path.parent} does not exist")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise SettingError(f"{command_name}: {file} cannot be written: permission denied; give another path")


@contextmanager
def report_write_errors(path: str | Path, *, command_name: str) -> Iterator[None]:
    """Turn an error while writing into a one-line message."""
    try:
        yield
    except BrokenPipeError:  # the reader of standard output has closed it
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingError(f"{command_name}: {path} cannot be written: {reason}; give another path") from error
