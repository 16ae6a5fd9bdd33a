"""Shells complete the command line by the scripts that `attnscope completion` prints; bash and zsh by real keys."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnscope.cli.completion import SCRIPTS
from attnscope.cli.main import main

PROGRAMS = Path(sys.executable).parent
PATIENCE = 60.0


def shell(name: str) -> str:
    """Where a shell is; a test of one that is not here is skipped, and says so."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def environment(home: Path) -> dict[str, str]:
    """The settings of a user who has none."""
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "TERM": "dumb", "LC_ALL": "C.UTF-8", "PYTHONPATH": ""}


class Terminal:
    """A shell on a terminal of its own, typed into."""

    def __init__(self, arguments: list[str], home: Path) -> None:
        self.screen = ""
        self._child, self._keys = pty.fork()
        if self._child == 0:
            os.chdir(home)
            os.execve(arguments[0], arguments, environment(home))

    def type(self, keys: str, until: str) -> str:
        """Press keys, wait until a text appears, and return all that was printed since."""
        before = len(self.screen)
        os.write(self._keys, keys.encode())
        end = time.monotonic() + PATIENCE
        while until not in self.screen[before:]:
            if not select.select([self._keys], [], [], max(end - time.monotonic(), 0))[0]:
                raise AssertionError(f"{until!r} did not appear after {keys!r}; the terminal shows {self.screen!r}")
            self.screen += os.read(self._keys, 4096).decode(errors="replace").replace("\r", "")
        return self.screen[before:]

    def close(self) -> None:
        os.close(self._keys)
        os.waitpid(self._child, 0)


STARTED = {
    "bash": (["--norc", "--noprofile", "-i"], ""),
    "zsh": (["-f", "-i"], "autoload -U compinit; compinit -u -D; "),
}


@pytest.mark.parametrize("name", STARTED)
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("attnscope su\t", "attnscope survey "),
        ("attnscope survey show --hea\t", "show --head "),
        ("attnscope look a-model rep\t", "a-model report.txt "),
    ],
)
def test_tab_completes_commands_options_and_files(name: str, keys: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("words")
    options, prepare = STARTED[name]
    terminal = Terminal([shell(name), *options], tmp_path)
    try:
        terminal.type(f"{prepare}eval \"$(attnscope completion {name})\"; echo rea''dy\n", until="ready\n")
        terminal.type(keys, until=expected)
    finally:
        terminal.close()


def test_fish_completes_commands_options_and_files_and_says_what_they_mean(tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("words")
    asked = (
        "attnscope completion fish | source; "
        "complete -C 'attnscope su'; complete -C 'attnscope survey show --hea'; complete -C 'attnscope look m rep'"
    )
    command = [shell("fish"), "--no-config", "-c", asked]
    told = subprocess.run(command, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    lines = told.stdout.splitlines()
    assert lines[0].startswith("survey\tRead a corpus of any size")
    assert lines[1].startswith("--head\tone head")
    assert lines[2].startswith("report.txt")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_shell_parses_its_script(name: str, tmp_path: Path) -> None:
    script = tmp_path / f"script.{name}"
    script.write_text(SCRIPTS[name])
    parsed = subprocess.run([shell(name), "-n", script], capture_output=True, text=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")


def test_a_script_that_is_cut_short_does_not_parse(tmp_path: Path) -> None:
    script = tmp_path / "script.bash"
    script.write_text(SCRIPTS["bash"].partition("}")[0])
    assert subprocess.run([shell("bash"), "-n", script], capture_output=True, check=False).returncode != 0


def test_the_scripts_are_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for name, script in SCRIPTS.items():
        assert main(["completion", name]) == 0
        assert capsys.readouterr().out == script


def test_candidates_are_lines_with_their_meaning_after_a_tab(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "candidates", "bench", "attention", "--size", ""]) == 0
    assert capsys.readouterr().out == "small\nfull\n"
    assert main(["completion", "candidates", "--vers"]) == 0
    assert re.fullmatch(r"--version\t.+\n", capsys.readouterr().out)
