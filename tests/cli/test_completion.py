"""Shells complete the command line by the scripts that `attnscope completion` prints; bash and zsh by real keys."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from attnscope.bench import NAMES as BENCHMARKS
from attnscope.cli.completion import SHELLS, VARIABLE
from attnscope.cli.main import SECTIONS, cli, main
from attnscope.heads import LABELS
from attnscope.labs import NAMES as LABS
from attnscope.labs.exercises import NAMES as EXERCISES

PROGRAMS = Path(sys.executable).parent
TIMEOUT_SECONDS = 60.0


def shell(name: str) -> str:
    """Where a shell is; a test of one that is not here is skipped, and says so."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def environment(home: Path) -> dict[str, str]:
    """The settings of a user who has none."""
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    return {
        "PATH": path,
        "HOME": str(home),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }


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
        end = time.monotonic() + TIMEOUT_SECONDS
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
    result = subprocess.run(
        command, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("survey\tscore every head over a corpus")
    assert lines[1].startswith("--head\tone head")
    assert lines[2].startswith("report.txt")


@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_parses_its_script(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = shell(name)
    assert main(["completion", name]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    parsed = subprocess.run([program, "-n", tmp_path / "script"], capture_output=True, text=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")


@pytest.mark.parametrize("name", SHELLS)
def test_a_script_asks_the_command_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", name]) == 0
    script = capsys.readouterr().out
    assert f"_ATTNSCOPE_COMPLETE={name}_complete" in script


def offered(*words: str) -> list[str]:
    """What click offers in the place of the last word."""
    *before, begun = words
    return [item.value for item in ShellComplete(cli, {}, "attnscope", VARIABLE).get_completions(before, begun)]


ALL = [name for names in SECTIONS.values() for name in names]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("su",), ["survey"]),
        (("",), ALL),
        (("--v",), ["--version"]),
        (("survey", ""), ["run", "show", "diff", "export"]),
        (("survey", "show", "--hea"), ["--head"]),
        (("lab", "ch"), ["check"]),
        (("train", "re"), ["reversal"]),
        (("train", "reversal", "--b"), ["--base-model", "--batch-size", "--bf16"]),
        (("bench", "attention", "--size", ""), ["small", "full"]),
        (("bench", "attention", "--size", "full", "--si"), []),
        (("generate", "m", "--stop", "a", "--sto"), ["--stop"]),
        (("generate", "--dtype", "b"), ["bfloat16"]),
        (("heads", "m", "--find", "in"), ["induction"]),
        (("lab", "notebook", "work"), ["worked_examples"]),
        (("lab", "hint", "caus"), ["causal_mask"]),
    ],
)
def test_a_word_is_offered_where_it_may_stand(words: tuple[str, ...], expected: list[str]) -> None:
    assert offered(*words) == expected


def test_names_are_those_of_labs_exercises_labels_and_benchmarks() -> None:
    assert offered("lab", "run", "") == [*LABS, "all"]
    assert offered("lab", "exercise", "") == list(EXERCISES)
    assert offered("bench", "") == list(BENCHMARKS)
    assert offered("heads", "--find", "") == [label.name for label in LABELS]


@pytest.mark.parametrize("words", ["lab run work", "bench att", "heads m --find in", "lab hint c"])
def test_names_are_completed_without_torch(words: str) -> None:
    settings = {VARIABLE: "bash_complete", "COMP_WORDS": f"attnscope {words}", "COMP_CWORD": str(words.count(" ") + 1)}
    program = "import sys; from attnscope.cli.main import main; main(); print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | settings, capture_output=True, text=True, check=True
    )
    *found, has_torch = ran.stdout.splitlines()
    assert found
    assert has_torch == "False"
