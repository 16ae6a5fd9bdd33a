"""Optional modules come through one door."""

import sys

import pytest

from attnscope.errors import MissingExtraError
from attnscope.extras import import_extra


def test_an_installed_module_comes_back() -> None:
    assert import_extra("safetensors.torch") is sys.modules["safetensors.torch"]


def test_a_missing_module_names_its_extra_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'ray is needed .* pip install "attnscope\[survey\]"') as caught:
        import_extra("ray.data")
    assert caught.value.name == "ray"


def test_a_module_broken_inside_is_not_called_missing(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ddsketch.py").write_text("import a_module_that_is_not_there")
    monkeypatch.delitem(sys.modules, "ddsketch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there") as caught:
        import_extra("ddsketch")
    assert not isinstance(caught.value, MissingExtraError)


def test_a_module_of_no_extra_is_refused() -> None:
    with pytest.raises(ValueError, match="'scipy' belongs to no extra"):
        import_extra("scipy")
