"""A release is refused until addresses, version, changelog and tree are in order."""

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.check_release import main, package_version
from tests.project.checkout import ROOT

FILES = ("pyproject.toml", "CHANGELOG.md", "CITATION.cff", "src/attnscope/version.py")
VERSION = package_version(ROOT)

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> None:
    user = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *user, *arguments], cwd=folder, check=True, capture_output=True)


def write(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository that can be released."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    settings, changelog = tmp_path / "pyproject.toml", tmp_path / "CHANGELOG.md"
    before, table, after = settings.read_text(encoding="utf-8").partition("[tool.attnscope.project]\n")
    rest = after.partition("\n\n")[2]
    addresses = 'repository = "https://a.b/c"\ndocumentation = "https://a.b/d"\ncontact = "a@b.c"\n\n'
    settings.write_text(before + table + addresses + rest, encoding="utf-8")
    changelog.write_text(f"# Changelog\n\n## [{VERSION}] - 2026-01-31\n", encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return tmp_path


def test_a_project_in_order_can_be_released(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tag", f"v{VERSION}"], project) == 0
    assert capsys.readouterr().err == ""
    assert main(["--version"], project) == 0
    assert capsys.readouterr().out == f"{VERSION}\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pyproject.toml", "https://a.b/c", "", "repository = ''; expected https://"),
        ("pyproject.toml", "https://a.b/d", "a.b/d", "documentation = 'a.b/d'"),
        ("pyproject.toml", "a@b.c", "somebody", "contact = 'somebody'"),
        ("CHANGELOG.md", "2026-01-31", "Unreleased", f"expected first '## [{VERSION}] - YYYY-MM-DD'"),
        ("CITATION.cff", f"version: {VERSION}", "version: 0.0.0", f"expected 'version: {VERSION}'"),
    ],
)
def test_what_is_missing_is_named(
    project: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, said: str
) -> None:
    write(project / file, old, new)
    git(project, "commit", "--quiet", "--all", "--message", "broken")
    assert main([], project) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_another_tag_and_a_changed_file_are_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "new.py").touch()
    assert main(["--tag", "v9"], project) == 1
    assert capsys.readouterr().err == f"release: tag: expected v{VERSION}, got v9\nrelease: not committed: new.py\n"
