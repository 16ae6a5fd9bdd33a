"""The fixtures that every test relies on do what they say."""

import functools
import gc
import sys
import weakref
from pathlib import Path
from types import ModuleType

import pytest
import torch

from attnscope import extras
from tests.conftest import release_caches

ALLOCATE = """
def allocate(torch):
    x = torch.ones(3)
    return torch.empty(3), torch.empty_like(x), x.new_empty(3), torch.empty(3, dtype=torch.long)
"""


def allocate_in(filename: str | Path) -> tuple[torch.Tensor, ...]:
    namespace = {}
    exec(compile(ALLOCATE, str(filename), "exec"), namespace)
    return namespace["allocate"](torch)


def test_memory_that_attnscope_leaves_unwritten_is_nan() -> None:
    *floating, integers = allocate_in(Path(extras.__file__).with_name("some_module.py"))
    assert all(tensor.isnan().all() for tensor in floating)
    assert integers.dtype == torch.long


def test_memory_of_others_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = []
    monkeypatch.setattr(torch.Tensor, "fill_", lambda tensor, value: filled.append(value))
    allocate_in("elsewhere.py")
    assert filled == []


@pytest.mark.compiled
def test_a_compiled_test_finds_torch_as_it_is() -> None:
    namespace = {}
    source = "import torch\ndef double(x):\n    return torch.empty_like(x).copy_(2 * x)\n"
    exec(compile(source, str(Path(extras.__file__).with_name("some_module.py")), "exec"), namespace)
    double = torch.compile(namespace["double"], fullgraph=True, backend="eager")
    assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))


def test_each_test_starts_from_the_same_seed() -> None:
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))


def test_what_tests_cache_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tests_of_a_cache.module")
    exec("def model(number):\n    return set()\n", vars(module))
    vars(module)["model"] = functools.cache(module.model)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    held = [weakref.ref(module.model(number)) for number in range(2)]
    gc.collect()
    assert all(one() is not None for one in held)
    release_caches("tests_of_a_cache.")
    assert all(one() is None for one in held)
