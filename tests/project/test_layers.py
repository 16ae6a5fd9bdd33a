"""Imports go down only, never in a circle, and each extra is imported in its own place."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnscope.extras import EXTRAS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "attnscope"

# From the ground up. Neighbours on one floor do not know each other. "attnscope" is the package's own `__init__`, whose
# public names come from everywhere: whoever imports it stands above them all.
FLOORS = (
    {"errors", "formatting", "version"},
    {"atomic_files", "checksums", "folder_lock", "extras", "downloads", "progress"},
    {"attention", "stores"},
    {"matrix", "variants"},
    {"images"},
    {"figures"},
    {"models"},
    {"recording"},
    {"heads", "atlas", "contracts"},
    {"train", "survey", "telemetry", "cache"},
    {"attnscope"},
    {"explorer", "labs", "bench", "doctor"},
    {"cli"},
)
RANK = {layer: rank for rank, floor in enumerate(FLOORS) for layer in floor}

CORE = {"torch", "numpy", "rich", "filelock"}
PLACES = {
    "click": {"cli"},
    "tokenizers": {"models"},
    "gguf": {"models"},
    "jinja2": {"models"},
    "huggingface_hub": {"models"},
    "safetensors": {"models", "recording"},
    "transformers": {"recording", "bench"},  # the benchmarks race against it
    "matplotlib": {"figures"},
    "PIL": {"images"},
    "tensorboard": {"train"},
    "torch.utils.tensorboard": {"train"},
    "pandas": {"heads"},
    "pyarrow": {"heads", "train", "survey", "telemetry"},
    "ray": {"survey"},
    "ddsketch": {"survey"},
    "fsspec": {"stores", "survey"},
    "s3fs": set(),  # fsspec imports it for addresses that begin with s3://
    "starlette": {"explorer"},
    "uvicorn": {"explorer"},
    "anywidget": {"explorer"},
    "traitlets": {"explorer"},
    "triton": {"attention"},
}
TRITON_MODULE = "attnscope.attention.triton.language"
"""The only module of attention that imports more than torch, the standard library and errors."""
UNLISTED = {"click", "fsspec", "torch.utils.tensorboard"}
"""What belongs to the base installation, or comes with torch."""


def modules_in(source: Path) -> dict[str, Path]:
    """Every module under the package folder, by its dotted name."""
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = [source.name, *path.relative_to(source).with_suffix("").parts]
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def imports_in(module: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """Every module that a file imports anywhere in it, with the line; `import_module("name")` counts too."""
    tree = ast.parse(path.read_text(), str(path))
    if module == "attnscope":  # its names for type checkers come from everywhere
        tree.body = [node for node in tree.body if not is_type_checking(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_name(module, path, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield (inner if inner in known else base), node.lineno
        elif isinstance(node, ast.Call) and called_name(node) == "import_extra":
            name = node.args[0]
            assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: import_extra takes a literal name"
            yield str(name.value), node.lineno
        elif isinstance(node, ast.Call) and called_name(node) == "import_module":
            yield from ((str(word.value), node.lineno) for word in node.args if isinstance(word, ast.Constant))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def called_name(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def absolute_name(module: str, path: Path, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def layer_of(module: str) -> str:
    """The layer of a module of ours: its first name below the package; what `python -m` starts is command line."""
    parts = module.split(".")
    if parts[-1] == "__main__":
        return "cli"
    return parts[1] if len(parts) > 1 else "attnscope"


def layer_faults(source: Path) -> list[str]:
    """What breaks the order of layers, each with file, line and reason."""
    known = modules_in(source)
    faults = []
    for module, path in known.items():
        layer = layer_of(module)
        if layer not in RANK:
            faults.append(f"{module}: the layer {layer!r} has no floor in test_layers.py")
            continue
        for imported, line in imports_in(module, path, known):
            if module == TRITON_MODULE and imported in ("attnscope.extras", "triton", "triton.language"):
                continue
            reason = fault_of(layer, imported)
            if reason:
                faults.append(f"{path.relative_to(source)}:{line}: {reason}")
    return faults


def fault_of(layer: str, imported: str) -> str | None:
    """Why this layer must not import that module, if so."""
    top = imported.partition(".")[0]
    if top == "attnscope":
        other = layer_of(imported)
        if layer == "attention" and other not in ("attention", "errors", "formatting"):
            return f"attention knows only torch, the standard library, errors and formatting, not {imported}"
        if other == layer or RANK.get(other, len(FLOORS)) < RANK[layer]:
            return None
        return f"{layer} must not import {imported}: it does not stand below"
    if top in sys.stdlib_module_names:
        return None
    if layer == "attention" and top != "torch":
        return f"attention knows only torch, the standard library, errors and formatting, not {imported}"
    for extra, places in PLACES.items():
        if imported == extra or imported.startswith(f"{extra}."):
            return None if layer in places else f"{extra} may be imported only in {sorted(places)}"
    return None if top in CORE else f"{top} is not a declared dependency"


def cycle_in(source: Path) -> list[str]:
    """One circle of imports, as the modules along it, or an empty list."""
    known = modules_in(source)
    edges = {m: [i for i, _ in imports_in(m, path, known) if i in known] for m, path in known.items()}
    finished: set[str] = set()

    def search(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module not in finished:
            for imported in edges[module]:
                if found := search(imported, [*trail, module]):
                    return found
            finished.add(module)
        return []

    return next((found for module in edges if (found := search(module, []))), [])


def write_package(folder: Path, files: dict[str, str]) -> Path:
    source = folder / "attnscope"
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


def test_imports_go_down_only() -> None:
    assert layer_faults(SOURCE) == []


def test_imports_form_no_circle() -> None:
    assert cycle_in(SOURCE) == []


def test_every_module_of_an_extra_has_its_place() -> None:
    assert {name for modules in EXTRAS.values() for name in modules} == PLACES.keys() - UNLISTED


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("attention/masks.py", "import attnscope.matrix", "knows only torch"),
        ("attention/masks.py", "from attnscope import extras", "knows only torch"),
        ("attention/masks.py", "import numpy", "knows only torch"),
        ("attention/triton/rows.py", "import triton", "knows only torch"),
        ("attention/triton/rows.py", "tl = import_extra('triton.language')", "knows only torch"),
        ("matrix/log.py", "import triton", "only in ['attention']"),
        ("matrix/__init__.py", "def f():\n    from attnscope.models import decoder", "does not stand below"),
        ("matrix/__init__.py", "from ..models import decoder", "does not stand below"),
        ("matrix/__init__.py", "from attnscope import Trace", "does not stand below"),
        ("heads/score.py", "import attnscope.atlas.plan", "does not stand below"),
        ("matrix/__init__.py", "import_module('attnscope.models.decoder')", "does not stand below"),
        ("models/decoder.py", "import transformers.models", "only in ['bench', 'recording']"),
        ("models/decoder.py", "pyplot = import_extra('matplotlib.pyplot')", "only in ['figures']"),
        ("matrix/log.py", "from torch.utils.tensorboard import SummaryWriter", "only in ['train']"),
        ("matrix/log.py", "import scipy", "not a declared dependency"),
        ("tools/thing.py", "", "has no floor"),
        ("models/layers.py", "import attnscope.models.__main__", "does not stand below"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, file: str, text: str, reason: str) -> None:
    models = {"__init__.py": "", "models/__init__.py": "", "models/decoder.py": "", "matrix/__init__.py": ""}
    faults = layer_faults(write_package(tmp_path, models | {file: text}))
    assert len(faults) == 1
    assert reason in faults[0]


def test_right_imports_are_accepted(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from attnscope.explorer import look\n",
        "errors.py": "",
        "extras.py": "from attnscope.errors import MissingExtraError",
        "attention/__init__.py": "import torch\nfrom . import masks\nfrom ..errors import ShapeError",
        "attention/masks.py": "import math",
        "attention/triton/language.py": "from attnscope.extras import x\ntl = import_extra('triton.language')",
        "models/checkpoint.py": "def f():\n    return import_extra('safetensors.torch')",
        "explorer/server.py": "import starlette.routing\nimport attnscope as ats",
    }
    source = write_package(tmp_path, files)
    assert layer_faults(source) == []
    assert cycle_in(source) == []


def test_a_circle_is_found_even_inside_functions(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "atlas/__init__.py": "",
        "atlas/plan.py": "from attnscope.atlas import tiles",
        "atlas/tiles.py": "def f():\n    from .plan import levels",
    }
    cycle = cycle_in(write_package(tmp_path, files))
    assert cycle == ["attnscope.atlas.plan", "attnscope.atlas.tiles", "attnscope.atlas.plan"]
