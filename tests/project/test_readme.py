"""The Python code in README and docs runs, all of it, top to bottom; commands are ones that the command line knows."""

import re
import shlex
from itertools import groupby
from pathlib import Path

import pytest
from huggingface_hub import constants

from attnscope import downloads
from tests.cli.parsing import parsed

ROOT = Path(__file__).resolve().parents[2]
HUB = ROOT / ".cache" / "hub"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW_PAGES = {ROOT / "docs" / name for name in ("survey.md", "train.md")}
FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)


def run_page(path: Path) -> int:
    """Execute the Python blocks of a page in one namespace; return how many there were."""
    text = path.read_text()
    namespace: dict[str, object] = {"__name__": path.stem}
    count = 0
    for fence in FENCE.finditer(text):
        language = fence["language"].strip()
        if language != "python":
            assert not language.startswith("py"), f"{path}: {language!r} would not be run; write 'python'"
            continue
        # The lines before the block stand in as empty ones, so that a traceback names the line of the page.
        lines_before = text.count("\n", 0, fence.start("code"))
        exec(compile("\n" * lines_before + fence["code"], str(path), "exec"), namespace)
        count += 1
    return count


def commands_on(text: str) -> list[list[str]]:
    """The arguments of every `attnscope` in the shell blocks of a page."""
    found = []
    for fence in FENCE.finditer(text):
        if fence["language"].strip() == "bash":
            code = re.sub(r"(?<!\S)#.*", "", fence["code"].replace("\\\n", " "))
            lexer = shlex.shlex(code, posix=True, punctuation_chars="&|;<>\n")
            lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
            parts = groupby(lexer, key=lambda word: not word.strip("&|;<>\n"))
            found += [words for is_between, part in parts if not is_between and (words := list(part))[0] == "attnscope"]
    return [words[1:] for words in found]


def refused_commands(text: str) -> list[str]:
    """Those of a page that the command line would not take."""
    found = []
    for arguments in commands_on(text):
        try:
            parsed(arguments)
        except ValueError:
            found.append(" ".join(arguments))
    return found


@pytest.fixture(autouse=True)
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page runs in: an empty folder, no network, no display, and the models that scripts/setup fetched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(HUB))  # for this process, which may have imported it before
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(HUB))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(downloads, "models_folder", lambda: ROOT / ".cache" / "models")
    monkeypatch.setenv("MPLBACKEND", "Agg")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page in SLOW_PAGES else page for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_on_the_page_runs(page: Path) -> None:
    run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_the_page_are_known(page: Path) -> None:
    assert refused_commands(page.read_text()) == []


def test_a_command_that_is_not_known_is_found() -> None:
    page = (
        "```bash\nattnscope look MODEL  # --no\ncat a | attnscope generate b - --stop '#' > c && attnscope see\n```\n"
    )
    assert commands_on(page) == [["look", "MODEL"], ["generate", "b", "-", "--stop", "#"], ["see"]]
    assert refused_commands(page) == ["see"]


def test_the_readme_has_code() -> None:
    assert FENCE.search((ROOT / "README.md").read_text())
    assert "```python" in (ROOT / "README.md").read_text()


def test_blocks_of_a_page_share_names(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```bash\nfalse\n```\n\n```python\nassert x == 1\n```\n")
    assert run_page(page) == 2


def test_a_broken_block_fails_with_the_line_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Words.\n\n```python\nx = 1\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run_page(page)
    assert caught.traceback[-1].lineno + 1 == 5


def test_a_block_that_would_not_run_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python no-run\nx = 1\n```\n")
    with pytest.raises(AssertionError, match="would not be run"):
        run_page(page)
