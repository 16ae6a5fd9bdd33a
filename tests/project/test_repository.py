"""Files for the host of the repository are valid, agree with the package, and name no address that does not exist."""

import re
import shutil
from pathlib import Path

import pytest

from attnscope.version import __version__
from scripts import compat
from scripts.check_files import file_faults
from tests.cli.parsing import parsed
from tests.project.checkout import ROOT, needs_git, tracked_files

MISTAKES = {
    ".github/workflows/checks.yml": ("runs-on:", "run-on:"),
    ".github/workflows/gpu.yml": ("timeout-minutes: 60", "timeout: 60"),
    ".github/workflows/release.yml": ("id-token: write", "id-token: maybe"),
    ".github/dependabot.yml": ("package-ecosystem: npm", "package-ecosystem: node"),
    ".github/ISSUE_TEMPLATE/bug.yml": ("type: textarea", "type: area"),
    ".github/ISSUE_TEMPLATE/config.yml": ("true", "perhaps"),
    "CITATION.cff": ("authors:", "author:"),
}
"""What a slip of the hand makes of a file."""
CHECKS = ROOT / ".github/workflows/checks.yml"
GPU = ROOT / ".github/workflows/gpu.yml"
OLD_NAME = re.compile("sight" + "line", re.IGNORECASE)
MAY_HAVE_OLD_NAME = {"CHANGELOG.md", "docs/decisions.md"}
ACTION = re.compile(r"uses: (?P<action>[\w./-]+)@(?P<pin>\S+)(?P<note>.*)")


def test_workflows_forms_and_citation_are_valid() -> None:
    assert file_faults(ROOT) == ""


def test_broken_files_are_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    shutil.copy(ROOT / "CITATION.cff", tmp_path)
    for file, (old, new) in MISTAKES.items():
        text = (tmp_path / file).read_text(encoding="utf-8")
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new), encoding="utf-8")
    faults = file_faults(tmp_path)
    assert [file for file in MISTAKES if file not in faults] == []
    assert ".github/workflows/docs.yml" not in faults


def unpinned_actions(text: str) -> list[str]:
    """Actions that are not fixed to a commit with its version beside it."""
    found = ACTION.finditer(text)
    return [a["action"] for a in found if not re.fullmatch(r"[0-9a-f]{40}", a["pin"]) or "# v" not in a["note"]]


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name)
def test_actions_are_pinned(workflow: Path) -> None:
    assert unpinned_actions(workflow.read_text(encoding="utf-8")) == []


def test_an_action_that_may_move_is_found() -> None:
    text = f"- uses: a/b@v4\n- uses: c/d@{'0' * 40} # v1\n- uses: e/f@{'0' * 40}\n"
    assert unpinned_actions(text) == ["a/b", "e/f"]


def test_the_citation_has_the_version_of_the_package() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_scripts_that_workflows_run_exist() -> None:
    workflows = (path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml"))
    named = {name for text in workflows for name in re.findall(r"\bscripts/\w+(?:\.py)?", text)}
    assert named >= {"scripts/setup", "scripts/check", "scripts/docs", "scripts/release"}
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_gpu_job_is_off_until_there_is_a_runner_and_then_verifies_and_measures() -> None:
    text = GPU.read_text(encoding="utf-8")
    jobs = text.partition("\njobs:\n")[2]
    assert len(re.findall(r"^  \w+:$", jobs, re.MULTILINE)) == 1
    assert "    if: ${{ vars.GPU_RUNNER != '' }}\n    runs-on: ${{ vars.GPU_RUNNER }}\n" in jobs
    found = [parsed(command.split()) for command in re.findall(r"attnscope (.+)", jobs)]
    assert [context.info_name for context in found] == ["doctor", "bench"]
    assert found[0].params["verify"] is True
    assert (found[1].params["name"], found[1].params["report"]) == ("device", "device.md")


def compat_results() -> dict[compat.Versions, str]:
    """The table in docs/support.md that scripts/compat writes."""
    return compat.read_table(compat.PAGE.read_text(encoding="utf-8").split(compat.BEGIN)[1].split(compat.END)[0])


def test_classifiers_and_required_jobs_are_those_of_tested_pythons() -> None:
    """`continue-on-error` of the matrix excuses systems that pyproject.toml does not classify."""
    text = CHECKS.read_text(encoding="utf-8")
    tested = {versions.python for versions in compat_results()}
    listed = compat.declared()["project"]["classifiers"]
    assert {name.rpartition(" ")[2] for name in listed if re.search(r"Python :: \d\.\d+$", name)} == tested
    assert set(re.findall(r'"(3\.\d+)"', text)) == tested
    assert "continue-on-error: ${{ matrix.os != 'ubuntu-latest' }}" in text


def test_the_oldest_versions_that_may_be_installed_were_tested() -> None:
    tested = {(versions.torch, versions.transformers) for versions in compat_results()}
    assert (compat.oldest("torch"), compat.oldest("transformers")) in tested


def test_all_tested_versions_passed() -> None:
    assert [result for result in compat_results().values() if "failed" in result or "not run" in result] == []


def test_other_versions_run_with_the_warnings_of_compat() -> None:
    """Newer and older libraries deprecate other things than the pinned ones, which pyproject.toml turns into errors."""
    assert " ".join(compat.WARNINGS_AS_USUAL) in CHECKS.read_text(encoding="utf-8")


def files_with_old_name(names: list[str], root: Path) -> list[str]:
    """Files whose name or content has the working title of the project."""
    return [
        name
        for name in names
        if OLD_NAME.search(name) or OLD_NAME.search((root / name).read_bytes().decode("utf-8", errors="ignore"))
    ]


@needs_git
def test_the_working_title_is_gone() -> None:
    assert set(files_with_old_name(tracked_files(), ROOT)) <= MAY_HAVE_OLD_NAME


def test_the_working_title_is_found_in_names_and_content(tmp_path: Path) -> None:
    title = "Sight" + "line"
    (tmp_path / "a.md").write_text(f"{title.upper()} was here")
    (tmp_path / f"{title}.txt").touch()
    (tmp_path / "b.md").write_text("a line of sight")
    assert files_with_old_name(["a.md", f"{title}.txt", "b.md"], tmp_path) == ["a.md", f"{title}.txt"]
