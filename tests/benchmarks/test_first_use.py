"""The walk of a new user runs the wheel of this checkout, and fails when a command of it fails."""

from pathlib import Path

import pytest

from attnscope.errors import SettingError
from benchmarks import first_use


def test_the_commands_of_the_walk_are_those_of_readme() -> None:
    readme = (first_use.ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("look", "heads", "cache", "survey run"):
        assert f"attnscope {command} " in readme
    assert f'pip install "attnscope[{first_use.FIRST}]"' in readme
    assert first_use.SENTENCE in readme


@pytest.mark.slow
def test_a_command_that_fails_is_an_error_with_its_output(tmp_path: Path) -> None:
    home = first_use.Home(tmp_path)
    cost = home.run("python -c pass")
    assert cost.cpu_seconds > 0
    with pytest.raises(SettingError, match="no such head"):
        home.run("python -c \"raise ValueError('no such head')\"")
    with pytest.raises(SettingError, match="no address"):
        home._wait_for_address(home._start("python -c pass"))
