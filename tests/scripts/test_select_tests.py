"""The tests that are run before a commit are those of the packages that changed, and a core."""

from __future__ import annotations

import pytest

from scripts.select_tests import CORE, ROOT, select, select_typed


@pytest.mark.parametrize(
    ("changed", "selected"),
    [
        ("src/attnscope/matrix/pooling.py", {"tests/matrix", "src/attnscope/matrix/pooling.py"}),
        ("src/attnscope/recording/files/saving.py", {"tests/recording", "src/attnscope/recording/files/saving.py"}),
        ("src/attnscope/downloads.py", {"tests/project", "tests/test_downloads.py", "src/attnscope/downloads.py"}),
        ("src/attnscope/explorer/static/explorer.js", {"tests/explorer"}),
        ("tests/survey/test_run.py", {"tests/survey/test_run.py"}),
        ("tests/attention/oracle.py", {"tests/attention"}),
        ("tests/attention/test_gone.py", set()),
        ("web/src/app.ts", {"tests/explorer"}),
        ("scripts/setup", {"tests/scripts"}),
        ("docs/masks.md", {"tests/project"}),
        ("pyproject.toml", {"tests/project"}),
    ],
)
def test_a_change_selects_the_tests_of_its_package(changed: str, selected: set[str]) -> None:
    found = set(select([changed], ROOT))
    assert selected <= found
    assert found <= selected | set(CORE)


def test_a_file_is_left_out_where_its_folder_is_run() -> None:
    found = select(["tests/attention/oracle.py", "tests/attention/test_numerics.py"], ROOT)
    assert [path for path in found if path.startswith("tests/attention")] == ["tests/attention"]


def test_the_core_exists() -> None:
    assert [path for path in CORE if not (ROOT / path).is_file()] == []
    assert select([], ROOT) == sorted(CORE)


def test_types_are_checked_in_what_changed_and_in_what_imports_it() -> None:
    assert select_typed(["docs/masks.md", "tests/test_gone.py"], ROOT) == []
    assert select_typed(["tests/scripts/test_select_tests.py"], ROOT) == ["tests/scripts/test_select_tests.py"]
    found = select_typed(["src/attnscope/errors.py"], ROOT)
    assert {"src/attnscope/errors.py", "src/attnscope/attention/masks.py"} <= set(found)
    assert "src/attnscope/version.py" not in found
