"""Optional modules come through one door."""

import sys

import pytest

from attnscope.errors import MissingExtraError, VersionError
from attnscope.explorer.service import connection
from attnscope.extras import import_extra, require_names


def test_an_installed_module_comes_back() -> None:
    assert import_extra("safetensors.torch") is sys.modules["safetensors.torch"]


def test_a_missing_module_names_its_extra_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'ray is needed .* pip install "attnscope\[ray\]"') as caught:
        import_extra("ray")
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


def test_a_name_that_a_package_lacks_is_reported_with_its_version() -> None:
    from transformers.modeling_utils import AttentionInterface

    require_names("transformers", AttentionInterface, "register", "_global_mapping")
    with pytest.raises(VersionError, match=r"^transformers 5\.\S+ has no AttentionInterface\.gone, .*pip install"):
        require_names("transformers", AttentionInterface, "register", "gone")


def test_a_module_that_moved_inside_a_package_is_not_called_missing() -> None:
    with pytest.raises(VersionError, match=r"^uvicorn 0\.\S+ has no module uvicorn\.nowhere, .*uvicorn=="):
        import_extra("uvicorn.nowhere")


def test_another_protocol_of_uvicorn_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        def __init__(self) -> None:
            self.connections = set()

    for name in connection.OVERRIDDEN:
        setattr(Bare, name, lambda self: None)
    connection.make_protocol()
    monkeypatch.setattr("uvicorn.protocols.http.h11_impl.H11Protocol", Bare)
    with pytest.raises(VersionError, match=r"^uvicorn 0\.\S+ has no H11Protocol\.conn, which attnscope reads"):
        connection.make_protocol()
