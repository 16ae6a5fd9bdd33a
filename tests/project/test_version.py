"""The version and the extras are the same wherever they are written."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

from attnscope.extras import EXTRAS, TESTED
from attnscope.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def newest_in(changelog: str) -> str:
    """The version of the first heading of a changelog."""
    found = re.search(r"^## \[(?P<version>[^\]]+)\] - (\d{4}-\d{2}-\d{2}|Unreleased)$", changelog, re.MULTILINE)
    assert found, "CHANGELOG.md has no heading of the form '## [1.2.3] - 2026-01-31' or '## [1.2.3] - Unreleased'"
    return found["version"]


def test_the_changelog_begins_with_this_version() -> None:
    assert newest_in((ROOT / "CHANGELOG.md").read_text()) == __version__


def test_the_first_heading_counts() -> None:
    assert newest_in("# Changelog\n\n## [0.2.0] - Unreleased\n\n## [0.1.0] - 2026-01-31\n") == "0.2.0"


def test_the_build_reads_the_version_from_the_package() -> None:
    assert "version" in PYPROJECT["project"]["dynamic"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "src/attnscope/version.py"
    assert version("attnscope") == __version__, "run scripts/setup: the installed metadata is of another version"


def test_the_extras_are_those_of_pyproject() -> None:
    written = PYPROJECT["project"]["optional-dependencies"]
    modules = {"pillow": "PIL"}  # packages that are imported by another name
    packages = {extra: [re.split(r"[\[<>=!~]", line)[0] for line in lines] for extra, lines in written.items()}
    names = {extra: tuple(modules.get(name, name) for name in listed) for extra, listed in packages.items()}
    everything = names.pop("all")
    assert names == EXTRAS
    assert everything == ("attnscope",)
    assert written["all"] == [f"attnscope[{','.join(extra for extra in EXTRAS if extra not in ('s3', 'triton'))}]"]


def pinned(package: str) -> str:
    """The version of a package in constraints.txt."""
    found = re.search(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_torch_has_a_lower_bound_that_the_pinned_one_keeps_and_no_upper_bound() -> None:
    bound = re.fullmatch(r"torch>=(\d+)\.(\d+)", PYPROJECT["project"]["dependencies"][0])
    assert bound
    assert [int(part) for part in bound.groups()] <= [int(part) for part in pinned("torch").split(".")[:2]]


def test_versions_that_errors_recommend_are_the_tested_ones() -> None:
    assert {package: pinned(package) for package in TESTED} == TESTED
