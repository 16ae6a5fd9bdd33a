"""The fixtures that every test relies on do what they say."""

from pathlib import Path

import pytest
import torch

from attnscope import extras

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
