"""scripts/compat reads versions from the project's files, counts results, and keeps the other rows of its table."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import compat
from scripts.compat import BEGIN, END, PAGE, Versions

OLD, NEW = Versions("3.11", "2.9.1", "5.0.0"), Versions("3.11", "2.13.0", "5.0.0")
PAGE_TEXT = f"# Title\n\n{BEGIN}\n{END}\nThe end.\n"


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("torch>=2.13", "torch"),
        ("torch==2.13.0+cpu", "torch"),
        ("huggingface_hub>=1.0,<3", "huggingface_hub"),
        ("ray[data]>=2.50", "ray"),
        ("pytest", "pytest"),
        ("ruamel.yaml==0.19.1", "ruamel.yaml"),
        ("tomli; python_version < '3.11'", "tomli"),
    ],
)
def test_the_name_of_a_requirement(requirement: str, name: str) -> None:
    assert compat.name_of(requirement) == name


def test_versions_are_ordered_by_number() -> None:
    versions = ["2.13.0", "2.9.1", "2.9.0", "3.0", "2.13.0+cpu"]
    assert sorted(versions, key=compat.as_numbers) == ["2.9.0", "2.9.1", "2.13.0", "2.13.0+cpu", "3.0"]


@pytest.mark.parametrize(
    ("requirement", "version"),
    [("torch>=2.13", "2.13.0"), ("torch>=2", "2.0.0"), ("torch>=2.9.1", "2.9.1"), ("torch>=2.9,<3", "2.9.0")],
)
def test_the_oldest_version_is_the_lower_bound(requirement: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project = {"dependencies": ["torchmetrics>=9", requirement], "optional-dependencies": {"a": ["numpy>=2.0"]}}
    monkeypatch.setattr(compat, "declared", lambda: {"project": project})
    assert compat.oldest("torch") == version
    assert compat.oldest("numpy") == "2.0.0"


def test_the_tested_version_is_that_of_constraints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "constraints.txt").write_text("torch-geometric==1.0\ntorch==2.13.0\ntransformers==5.22.2\n")
    monkeypatch.setattr(compat, "ROOT", tmp_path)
    assert compat.tested("torch") == "2.13.0"


def test_requirements_leave_out_what_is_switched() -> None:
    names = [compat.name_of(one) for one in compat.requirements()]
    assert {"numpy", "safetensors", "pandas", "matplotlib", "pytest", "hypothesis"} <= set(names)
    assert not {"torch", "transformers"} & set(names)


def test_tools_are_those_of_the_test_group() -> None:
    group = compat.declared()["dependency-groups"]["test"]
    assert {compat.name_of(one) for one in group} == set(compat.TOOLS)


@pytest.mark.parametrize(
    ("failures", "errors", "skipped", "words"),
    [
        (0, 0, 0, "1,234 passed"),
        (0, 0, 4, "1,230 passed, 4 skipped"),
        (2, 1, 0, "1,231 passed, 3 failed"),
        (2, 1, 31, "1,200 passed, 3 failed, 31 skipped"),
    ],
)
def test_a_report_is_counted(failures: int, errors: int, skipped: int, words: str, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    counts = f'tests="1234" failures="{failures}" errors="{errors}" skipped="{skipped}"'
    report.write_text(f"<testsuites><testsuite {counts} /></testsuites>")
    assert compat.summarize(report) == words


def test_results_are_added_in_the_order_of_versions() -> None:
    page = compat.with_result(compat.with_result(PAGE_TEXT, NEW, "5 passed"), OLD, "4 passed, 1 failed")
    assert page.startswith(f"# Title\n\n{BEGIN}\n| Python | torch |")
    assert page.endswith(
        f"| 3.11 | 2.9.1 | 5.0.0 | 4 passed, 1 failed |\n| 3.11 | 2.13.0 | 5.0.0 | 5 passed |\n{END}\nThe end.\n"
    )
    assert compat.read_table(page.split(BEGIN)[1].split(END)[0]) == {OLD: "4 passed, 1 failed", NEW: "5 passed"}


def test_a_new_result_replaces_that_of_the_same_versions() -> None:
    page = compat.with_result(compat.with_result(PAGE_TEXT, OLD, "4 passed, 1 failed"), NEW, "5 passed")
    again = compat.with_result(page, OLD, "5 passed")
    assert again == page.replace("4 passed, 1 failed", "5 passed")


@pytest.fixture
def run_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the script on two combinations whose tests are not run, and return the page."""
    page = tmp_path / "support.md"
    monkeypatch.setattr(compat, "PAGE", page)
    monkeypatch.setattr(compat, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(compat, "find_pythons", lambda: {"3.11": Path("python")})
    monkeypatch.setattr(compat, "run", lambda versions, *_: f"{versions.torch} ran")

    def run(*options: str) -> str:
        page.write_text(compat.with_result(PAGE_TEXT, Versions("3.12", "2.13.0", "5.0.0"), "7 passed"))
        versions = ["--torch", "2.9.1", "--torch", "2.13.0", "--transformers", "5.0.0"]
        monkeypatch.setattr(sys, "argv", ["compat", *versions, *options])
        compat.main()
        return page.read_text()

    return run


def test_a_run_of_some_versions_keeps_the_rows_of_others(run_main: Callable[..., str]) -> None:
    assert compat.read_table(run_main().split(BEGIN)[1].split(END)[0]) == {
        OLD: "2.9.1 ran",
        NEW: "2.13.0 ran",
        Versions("3.12", "2.13.0", "5.0.0"): "7 passed",
    }


@pytest.mark.parametrize("options", [("--tests", "tests/heads"), ("-k", "some")])
def test_a_run_of_some_tests_leaves_the_table(run_main: Callable[..., str], options: tuple[str, ...]) -> None:
    assert " ran |" not in run_main(*options)
    assert " ran |" in run_main()


def test_the_page_has_both_markers_once_and_a_table_that_can_be_read() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    for versions, result in compat.read_table(text.split(BEGIN)[1].split(END)[0]).items():
        assert all(compat.as_numbers(one) for one in versions)
        assert "passed" in result or result.startswith("not run: ")
