"""Everything in the source that could run code from a file, or code from a text, is listed here with a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "attnscope"

MODULES = frozenset(
    ("cloudpickle", "dill", "jinja2", "joblib", "jsonpickle", "marshal", "pickle", "runpy", "shelve", "yaml")
)
"""Modules that read or run code; importing one of them, or a part of it, counts."""

CALLS = frozenset(
    (
        "__import__",
        "compile",
        "eval",
        "exec",
        "os.popen",
        "os.system",
        "pandas.read_pickle",
        "torch.hub.load",
        "torch.jit.load",
        "torch.load",
        "torch.package.PackageImporter",
    )
)
"""Functions that run code in a file or a text, by their full names."""

LOADERS = ("distributed.checkpoint.load", "state_dict_loader.load", "numpy.load")
"""Ends of the full names of functions that unpickle by default, or on request."""

KEYWORDS = {"allow_pickle": False, "shell": False, "trust_remote_code": False, "weights_only": True}
"""Arguments that decide whether a function is safe, and the value with which it is."""

ALLOWED: dict[tuple[str, str], str] = {
    ("explorer/analysis/weight_files.py", "allow_pickle"): "False: writes plain numbers",
    ("explorer/static_export/exporter.py", "numpy.load"): "reads what weight_files.py wrote in this process",
    ("explorer/static_site/site_folder.py", "numpy.load"): "reads what an interrupted run wrote; numpy refuses pickles",
    ("labs/exercise.py", "compile"): "an answer to an exercise is a program of the user",
    ("labs/exercise.py", "exec"): "an answer to an exercise is a program of the user",
    ("models/text/chat_template.py", "jinja2"): "finds the files of jinja2 for the sandboxed process",
    ("models/text/template_sandbox.py", "jinja2"): "runs templates in jinja2's sandbox, in a process with limits",
    ("recording/transformers_images.py", "trust_remote_code"): "False: code that came with a processor is not run",
    ("recording/transformers_models.py", "trust_remote_code"): "False: code that came with a model is not run",
    ("recording/transformers_tokenizers.py", "trust_remote_code"): "False: code that came with a tokenizer is not run",
    (
        "train/checkpoint.py",
        "state_dict_loader.load",
    ): "reads through the planner and the metadata of checkpoint_files.py",
    ("train/checkpoint_files.py", "pickle"): "an unpickler that knows the classes of the metadata and no others",
    ("train/checkpoint_files.py", "torch.load"): "values of a checkpoint, as plain values and tensors only",
    ("train/checkpoint_files.py", "weights_only"): "True: only plain values and tensors",
}
"""What is used, by file and name, and why it is safe. Others fail the test."""


def unsafe_uses(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Everything on the lists above that a file uses, with its line."""
    names = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((found, node.lineno) for alias in node.names if (found := unsafe_module(alias.name)))
        elif isinstance(node, ast.ImportFrom):
            if found := unsafe_module(node.module or ""):
                yield found, node.lineno
            full = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ((found, node.lineno) for name in full if (found := unsafe_function(name)))
        elif isinstance(node, ast.Call):
            yield from uses_of_call(node, names)
        elif isinstance(node, ast.Attribute) and (found := unsafe_function(full_name(node, names))):
            yield found, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in CALLS - {"compile"}:
            yield node.id, node.lineno


def uses_of_call(node: ast.Call, names: dict[str, str]) -> Iterator[tuple[str, int]]:
    yield from ((word.arg, node.lineno) for word in node.keywords if word.arg in KEYWORDS)
    called = full_name(node.func, names)
    if called == "compile":
        yield called, node.lineno
    if called.rpartition(".")[2] in ("import_extra", "import_module", "__import__"):
        for argument in node.args:
            if isinstance(argument, ast.Constant) and (found := unsafe_module(str(argument.value))):
                yield found, node.lineno


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What the names of a file stand for, as far as they are imported: `np` for `numpy`."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def full_name(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def unsafe_module(name: str) -> str | None:
    top = name.partition(".")[0]
    return top if top in MODULES else None


def unsafe_function(name: str) -> str | None:
    if name in CALLS and "." in name:
        return name
    return next((end for end in LOADERS if name == end or name.endswith(f".{end}")), None)


def uses_in(source: Path) -> dict[tuple[str, str], list[int]]:
    """The lines of every use, by file and name."""
    found: dict[tuple[str, str], list[int]] = {}
    for path in sorted(source.rglob("*.py")):
        for name, line in unsafe_uses(ast.parse(path.read_text(), str(path))):
            found.setdefault((path.relative_to(source).as_posix(), name), []).append(line)
    return found


def test_every_use_is_allowed_for_a_reason() -> None:
    found = uses_in(SOURCE)
    assert {key: lines for key, lines in found.items() if key not in ALLOWED} == {}
    assert ALLOWED.keys() - found.keys() == set(), "remove what is not used any more"
    assert all(ALLOWED.values())


def test_flags_that_allow_code_are_off() -> None:
    flags = [
        (path.name, word.arg, ast.literal_eval(word.value))
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg in KEYWORDS
    ]
    assert flags
    assert [(file, name, value) for file, name, value in flags if value is not KEYWORDS[name]] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import pickle", "pickle"),
        ("from pickle import loads", "pickle"),
        ("import_extra('joblib')", "joblib"),
        ("import importlib\nimportlib.import_module('yaml.loader')", "yaml"),
        ("def f():\n    import cloudpickle as c", "cloudpickle"),
        ("import torch\ntorch.load(path)", "torch.load"),
        ("import torch as t\nread = t.load", "torch.load"),
        ("from torch import load", "torch.load"),
        ("import torch.distributed.checkpoint as dcp\ndcp.load(state)", "distributed.checkpoint.load"),
        ("from torch.distributed.checkpoint.state_dict_loader import load", "state_dict_loader.load"),
        ("import numpy as np\nnp.load(path)", "numpy.load"),
        ("from numpy import load", "numpy.load"),
        ("eval('1')", "eval"),
        ("run = exec", "exec"),
        ("compile('1', '', 'eval')", "compile"),
        ("import os\nos.system('ls')", "os.system"),
        ("subprocess.run('ls', shell=True)", "shell"),
        ("auto.from_pretrained(path, trust_remote_code=True)", "trust_remote_code"),
        ("read(path, weights_only=False)", "weights_only"),
        ("read(path, allow_pickle=True)", "allow_pickle"),
        ("import marshal, shelve", "shelve"),
        ("from jinja2.sandbox import SandboxedEnvironment", "jinja2"),
    ],
)
def test_a_new_use_is_found(text: str, name: str) -> None:
    assert name in {found for found, _ in unsafe_uses(ast.parse(text))}


@pytest.mark.parametrize(
    "text",
    [
        "model.eval()",
        "import torch\ntorch.compile(model)",
        "import re\nre.compile('a')",
        "import json\njson.load(file)",
        "from attnscope.recording import load\nload(place)",
        "import numpy as np\nnp.save(path, x)",
    ],
)
def test_harmless_calls_are_not_found(text: str) -> None:
    assert list(unsafe_uses(ast.parse(text))) == []
