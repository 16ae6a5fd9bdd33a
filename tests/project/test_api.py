"""Every public name has a docstring and stands on a page of docs/api; tests/project/test_site.py builds those pages."""

import ast
import importlib
import inspect
import re
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE, PAGES = ROOT / "src", ROOT / "docs" / "api"
PACKAGES = sorted(
    ".".join(path.parent.relative_to(SOURCE).parts)
    for path in SOURCE.rglob("__init__.py")
    if re.search(r"^__all__\b", path.read_text(), re.MULTILINE)
)
DIRECTIVE = re.compile(r"^\.\. (?P<kind>currentmodule|auto(?:function|class|data)):: (?P<name>[\w.]+)$", re.MULTILINE)
LISTED = re.compile(r"^   ~(?P<name>attnscope\.[\w.]+)$", re.MULTILINE)

HOOKS = {"apply", "narrow", "check", "owns"}
"""Methods that AttnScope calls; their base class or protocol explains the arguments."""


def shown_on(pages: Path) -> set[str]:
    """The full names of everything that the pages of a folder show."""
    found = set()
    for page in sorted(pages.glob("*.md")):
        module = ""
        for directive in DIRECTIVE.finditer(page.read_text()):
            kind, name = directive["kind"], directive["name"]
            if kind == "currentmodule":
                module = name
            else:
                found.add(name if name.startswith("attnscope.") else f"{module}.{name}")
    return found


def thing_at(full_name: str) -> object:
    """The object with a full name."""
    home, _, name = full_name.rpartition(".")
    return getattr(importlib.import_module(home), name)


def missing_names(package: str, names: list[str], shown: set[str]) -> list[str]:
    """The names of a package that no page shows, under whichever public path."""
    same = {name: [thing_at(other) for other in shown if other.rpartition(".")[2] == name] for name in names}
    return [name for name in names if not any(thing is thing_at(f"{package}.{name}") for thing in same[name])]


def undocumented(package: str, names: list[str]) -> list[str]:
    """The names of a package without a docstring of their own, with the public methods of its classes."""
    found = []
    for name in names:
        thing = thing_at(f"{package}.{name}")
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            found += [] if constant_has_docstring(importlib.import_module(package), name) else [name]
            continue
        if not own_docstring(thing):
            found.append(name)
        if inspect.isclass(thing):
            found += [f"{name}.{method}" for method in methods_of(thing) if not has_docstring(thing, method)]
    return found


def incomplete(package: str, names: list[str]) -> list[str]:
    """The functions of a package whose docstring lacks an argument, or what they return."""
    found = []
    for name in names:
        thing = thing_at(f"{package}.{name}")
        if not inspect.isfunction(thing):
            continue
        text, signature = thing.__doc__ or "", inspect.signature(thing)
        _, _, listed = text.partition("Args:\n")
        found += [f"{name}({each})" for each in signature.parameters if not re.search(rf"^ +\**{each}: ", listed, re.M)]
        returns_nothing = signature.return_annotation in (None, "None", "Iterator[None]")  # or a context manager
        if not returns_nothing and not re.search(r"\A(Return|Yield)|^ +(Returns|Yields):$", text, re.M):
            found.append(f"{name} ->")
    return found


def own_docstring(thing: object) -> bool:
    """Whether somebody wrote it: dataclasses and named tuples make one up from their fields."""
    text = thing.__doc__ or ""
    return bool(text.strip()) and not text.startswith(f"{getattr(thing, '__name__', '')}(")


def methods_of(kind: type) -> list[str]:
    """The public methods and properties that a class defines itself."""
    kinds = (FunctionType, property, cached_property, classmethod, staticmethod)
    return [name for name, made in vars(kind).items() if not name.startswith("_") and isinstance(made, kinds)]


def has_docstring(kind: type, method: str) -> bool:
    """Whether a class says what its method does, or one that it derives from and that is of the same library."""
    library = kind.__module__.partition(".")[0]
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == library]
    return any(getattr(vars(base).get(method), "__doc__", None) for base in own)


def without_args(package: str, names: list[str]) -> list[str]:
    """The functions and methods of a package that take arguments and whose own docstring does not explain them."""
    found = []
    for name in names:
        thing = thing_at(f"{package}.{name}")
        methods = vars(thing).items() if inspect.isclass(thing) else [("", thing)]
        for method, made in methods:
            function: Any = inspect.unwrap(cast(Any, getattr(made, "__func__", made)))
            is_hook = method in HOOKS or method.startswith(("_", "on_"))
            if inspect.isfunction(function) and not is_hook and explains_too_little(function):
                found.append(f"{name}.{method}".rstrip("."))
    return found


def explains_too_little(function: FunctionType) -> bool:
    """Whether a function has a docstring without "Args:", although it takes arguments."""
    taken = inspect.signature(function).parameters.keys() - {"self", "cls", "progress", "_", "__"}
    return bool(taken) and bool(function.__doc__) and "Args:" not in (function.__doc__ or "")


def constant_has_docstring(module: ModuleType, name: str) -> bool:
    """Whether a string follows the assignment of a constant, where it is made or in a module it is taken from."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ImportFrom) and any(alias.name == name for alias in statement.names):
            return constant_has_docstring(importlib.import_module(str(statement.module)), name)
    for statement, after in zip(tree.body, tree.body[1:], strict=False):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    return False


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_stands_on_an_api_page(package: str) -> None:
    names = list(importlib.import_module(package).__all__)
    assert missing_names(package, names, shown_on(PAGES)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package: str) -> None:
    assert undocumented(package, list(importlib.import_module(package).__all__)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_function_documents_its_arguments_and_what_it_returns(package: str) -> None:
    assert incomplete(package, list(importlib.import_module(package).__all__)) == []


def test_the_first_api_page_lists_what_attnscope_itself_offers() -> None:
    listed = {entry["name"] for entry in LISTED.finditer((PAGES / "index.md").read_text())}
    offered = list(importlib.import_module("attnscope").__all__)
    assert sorted(name.rpartition(".")[2] for name in listed) == sorted(offered)
    assert missing_names("attnscope", offered, listed) == []


def test_there_are_packages_to_look_at() -> None:
    assert {"attnscope", "attnscope.attention", "attnscope.models.text", "attnscope.heads"} <= set(PACKAGES)


def test_a_name_that_no_page_shows_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(".. currentmodule:: attnscope.attention\n\n.. autoclass:: Causal\n")
    assert missing_names("attnscope.attention", ["Causal", "Window"], shown_on(tmp_path)) == ["Window"]


def test_a_name_on_a_page_that_means_another_thing_does_not_count() -> None:
    assert missing_names("attnscope.train", ["Settings"], {"attnscope.survey.Settings"}) == ["Settings"]


def test_a_name_without_a_docstring_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wordless.py").write_text(
        "from typing import NamedTuple\n\nA = 1\n'''Told.'''\nB = 2\n\ndef f():\n    '''Told.'''\n\ndef g(): ...\n\n"
        "class C(NamedTuple):\n    x: int\n\nclass D:\n    '''Told.'''\n    def m(self): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert undocumented("wordless", ["A", "B", "f", "g", "C", "D"]) == ["B", "g", "C", "D.m"]


def test_an_argument_and_a_result_without_a_word_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "terse.py").write_text(
        "def f(a, b) -> int:\n    '''Add.\n\n    Args:\n        a: One.\n    '''\n\n"
        "def g(*a) -> int:\n    '''Return the sum.\n\n    Args:\n        *a: All.\n    '''\n\n"
        "def h() -> None:\n    '''Print.'''\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert incomplete("terse", ["f", "g", "h"]) == ["f(b)", "f ->"]
