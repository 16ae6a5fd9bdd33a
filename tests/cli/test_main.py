"""The command line turns arguments into calls, and expected errors into one line."""

import errno
import json
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from attnscope.cli import main as command
from attnscope.errors import UnsupportedError
from attnscope.version import __version__


def test_doctor_prints_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["doctor"]) == 0
    assert f"attnscope\t{__version__}" in capsys.readouterr().out


def test_doctor_prints_its_facts_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["attnscope"] == found["installation"]["attnscope"] == __version__
    assert {"extras", "machine", "kernels", "limits"} <= found.keys()
    assert found["verified"] is None


def test_doctor_verifies_apart_from_its_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attnscope.doctor.verify", lambda console: console.file.write("faults\n") == 0)
    assert command.main(["doctor", "--json", "--verify"]) == 2
    output, errors = capsys.readouterr()
    assert json.loads(output)["verified"] is False
    assert errors.startswith("faults\n")


def test_bench_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fake_bench(monkeypatch, lambda *args, **kwargs: calls.append((args, kwargs)))
    assert command.main(["bench", "lse", "--size", "full", "--report", "out.md"]) == 0
    assert calls == [(("lse",), {"size": "full", "report": "out.md"})]


def test_bench_is_small_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fake_bench(monkeypatch, lambda *args, **kwargs: calls.append(kwargs))
    command.main(["bench", "lse"])
    assert calls == [{"size": "small", "report": None}]


def test_a_report_without_a_file_is_named_by_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fake_bench(monkeypatch, lambda *args, **kwargs: calls.append(kwargs))
    monkeypatch.setattr("attnscope.bench.default_report", lambda name: f"{name}_today.md", raising=False)
    monkeypatch.chdir(tmp_path)
    assert command.main(["bench", "lse", "--report"]) == 0
    assert command.main(["bench", "lse", "--report", "--size", "full"]) == 0
    assert calls == [{"size": size, "report": "lse_today.md"} for size in ("small", "full")]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.EIO, "Input/output error"),
            "Input/output error; check the disk, and run the same command again",
        ),
        (
            OSError(errno.ENOSPC, "No space left", "a.csv"),
            "a.csv: No space left; give another path, or free some space",
        ),
        (OSError(errno.ENOSPC, "No space left"), "No space left; give another path, or free some space"),
    ],
)
def test_an_error_of_the_disk_is_one_line(
    error: OSError, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    fake_bench(monkeypatch, fail)
    assert command.main(["bench", "lse"]) == 2
    assert capsys.readouterr().err == f"attnscope: {line}\n"


def test_a_thread_that_fails_because_of_the_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda found: others.append(found.exc_value))
    bug = ValueError("a bug")

    def fail_in_threads(*args: object, **kwargs: object) -> None:
        for error in (OSError(errno.ENOSPC, "No space left"), bug):
            thread = threading.Thread(target=raise_error, args=(error,))
            thread.start()
            thread.join()

    fake_bench(monkeypatch, fail_in_threads)
    assert command.main(["bench", "lse"]) == 0
    assert capsys.readouterr().err == "a thread in the background failed: No space left\n"
    assert others == [bug]


def raise_error(error: Exception) -> None:
    raise error


def test_an_expected_error_is_one_line_and_exit_code_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise UnsupportedError("asked for x,\n    got y")

    fake_bench(monkeypatch, refuse)
    assert command.main(["bench", "lse"]) == 2
    assert capsys.readouterr().err == "attnscope: asked for x, got y\n"


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bench(monkeypatch, lambda *args, **kwargs: [][0])
    with pytest.raises(IndexError):
        command.main(["bench", "lse"])


def fake_bench(monkeypatch: pytest.MonkeyPatch, run: object) -> None:
    bench = ModuleType("attnscope.bench")
    monkeypatch.setattr(bench, "run", run, raising=False)
    monkeypatch.setattr(bench, "NAMES", ("lse",), raising=False)
    monkeypatch.setitem(sys.modules, "attnscope.bench", bench)
    monkeypatch.setattr("attnscope.bench", bench, raising=False)
