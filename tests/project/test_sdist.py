"""The sdist holds all sources, its own tests pass where it is unpacked, and its README works on a package index."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from attnscope.version import __version__
from tests.project.checkout import ROOT, needs_git, tracked_files

NAME = f"attnscope-{__version__}"
REPOSITORY = "https://example.org/owner/attnscope"
# What a copy needs to be built.
FEW = ("pyproject.toml", "README.md", "LICENSE", "scripts/build_metadata.py", "src/attnscope/version.py")
# Tests that read files outside of src and tests, and take seconds.
READERS = ("test_architecture.py", "test_budget.py", "test_figures.py", "test_repository.py", "test_version.py")
RELATIVE = re.compile(r"\]\((?!https?://|#)[^)]*\)|(?:src|href)=\"(?!https?://|#)")


def build_sdist(source: Path, out: Path) -> Path:
    """Build with the hatchling that is installed here, so that no index is needed."""
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / f"{NAME}.tar.gz"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the sdist of this checkout becomes."""
    place = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build_sdist(ROOT, place)) as archive:
        archive.extractall(place, filter="data")
    return place / NAME


def metadata_with(place: Path, **addresses: str) -> Message:
    """The metadata of a build in which the addresses are these."""
    for name in FEW:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    settings = place / "pyproject.toml"
    text = settings.read_text(encoding="utf-8")
    for name in ("repository", "documentation", "contact"):
        text, found = re.subn(rf'^{name} = ".*?"', f'{name} = "{addresses.get(name, "")}"', text, flags=re.MULTILINE)
        assert found == 1
    settings.write_text(text, encoding="utf-8")
    with tarfile.open(build_sdist(place, place / "dist")) as archive:
        info = archive.extractfile(f"{NAME}/PKG-INFO")
        assert info
        return Parser().parsestr(info.read().decode("utf-8"))


@needs_git
def test_the_sdist_holds_what_git_tracks_and_nothing_else(unpacked: Path) -> None:
    packed = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    new = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    assert packed - {"PKG-INFO", *new.stdout.split("\n")} == set(tracked_files())


def test_tests_that_read_the_repository_pass_in_the_sdist(unpacked: Path) -> None:
    tests = [f"tests/project/{name}" for name in READERS]
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(unpacked / "src")}
    done = subprocess.run(command, cwd=unpacked, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_sdist_without_what_tests_read_fails_them(unpacked: Path, tmp_path: Path) -> None:
    shutil.copytree(unpacked, tmp_path / "less", ignore=shutil.ignore_patterns("benchmarks", "images", "web"))
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "tests/project/test_figures.py"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "less" / "src")}
    assert subprocess.run(command, cwd=tmp_path / "less", env=environment, capture_output=True, check=False).returncode


def test_with_an_address_links_and_pictures_of_the_readme_are_absolute(tmp_path: Path) -> None:
    found = metadata_with(tmp_path, repository=REPOSITORY, documentation="https://example.org/docs")
    text = str(found.get_payload())
    assert RELATIVE.findall(text) == []
    assert f"{REPOSITORY}/raw/v{__version__}/docs/images/" in text
    assert f"]({REPOSITORY}/blob/v{__version__}/CONTRIBUTING.md)" in text
    assert f"Repository, {REPOSITORY}" in (found.get_all("Project-URL") or [])
    assert "Documentation, https://example.org/docs" in (found.get_all("Project-URL") or [])


def test_without_an_address_there_are_no_urls_and_the_readme_is_as_written(tmp_path: Path) -> None:
    found = metadata_with(tmp_path)
    assert found.get_all("Project-URL") is None
    assert str(found.get_payload()).strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert found["Summary"] == "Inspect attention in PyTorch transformers at any sequence length."
