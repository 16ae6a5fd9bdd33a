"""Checks output paths before a command starts its work, and writes tables of heads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.errors import SettingError

if TYPE_CHECKING:
    from attnscope.heads import HeadTable


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


def write_table(table: HeadTable, *, csv: str | None, parquet: str | None, command_name: str) -> None:
    """Write a table of heads to the files that are given; `-` as CSV is standard output."""
    if csv is not None:
        with report_write_errors(csv, command_name=command_name):
            table.to_csv(sys.stdout if csv == "-" else csv)
    if parquet is not None:
        with report_write_errors(parquet, command_name=command_name):
            table.to_parquet(parquet)
