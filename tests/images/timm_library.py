"""timm from the folder in which scripts/setup installs it.

The torchvision that timm imports is compiled for CUDA on the package index. Beside a CPU build of torch its operators
are missing, and its module with their shapes raises an error. timm uses neither, so an empty module replaces it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / ".venv" / "timm"
SHAPES = "torchvision._meta_registrations"


@contextmanager
def timm_installed() -> Iterator[None]:
    """Make timm importable; skip the test if it is not installed.

    Afterwards it is not importable any more, because transformers loads other image processors if it finds torchvision.
    """
    if find_spec("timm") is not None or not FOLDER.exists():  # scripts/compat has installed it beside a torch for CUDA
        pytest.importorskip("timm", exc_type=ImportError)
        yield
        return
    sys.path.append(str(FOLDER))
    sys.modules[SHAPES] = ModuleType(SHAPES)
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))
        for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
            del sys.modules[name]


def create_model(name: str, **options: Any) -> Any:
    """A model of timm with random parameters."""
    return import_module("timm").create_model(name, **options)
