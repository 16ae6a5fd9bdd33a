"""Run a command line inside this process, which spares a test the imports of a new one."""

from __future__ import annotations

import io
import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from attnscope.cli.main import main


class Result(NamedTuple):
    """What a command returned and printed."""

    code: int
    output: str
    errors: str


def run_command(*arguments: str | Path, stdin: bytes = b"", folder: Path | None = None, columns: int = 100) -> Result:
    """Run `attnscope` in a folder, with these bytes on standard input and this width of a terminal."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for name in ("output", "errors")}
    given = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with (
        patch.dict(os.environ, COLUMNS=str(columns)),
        patch.object(sys, "stdin", given),
        redirect_stdout(streams["output"]),
        redirect_stderr(streams["errors"]),
        chdir(folder or Path.cwd()),
    ):
        code = main([*map(str, arguments)])
    return Result(code, *(read_back(stream) for stream in streams.values()))


def read_back(stream: io.TextIOWrapper) -> str:
    """All that was written to a stream in memory."""
    stream.seek(0)
    return stream.read()


def assert_mistake(result: Result, message: str) -> None:
    """Check that a command printed one line of error, nothing else, and returned 2."""
    assert "Traceback" not in result.errors, result.errors
    assert (result.code, result.output) == (2, "")
    (line,) = result.errors.splitlines()
    assert line.startswith("attnscope: ")
    assert message in line
