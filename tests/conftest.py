"""What every test gets: a fixed seed, uninitialized memory that shows itself, and no time limit for an example."""

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch._dynamo import trace_rules
from torch.utils import _device

# `with torch.device("meta")` remembers the allocating functions as it first finds them: let it find torch's own.
_device._device_constructors()

settings.register_profile("attnscope", deadline=None)  # the time of an example depends on what else the machine does
settings.load_profile("attnscope")

SOURCE = str(Path(__file__).resolve().parent.parent / "src" / "attnscope")


@pytest.fixture(autouse=True, scope="module")
def released_caches() -> Iterator[None]:
    """Models that tests cache are released after each file, so that a process holds those of one file only."""
    yield
    release_caches("tests.")


def release_caches(package: str) -> None:
    """Clear all functions of a package that `functools.cache` wraps."""
    modules = [module for name, module in sys.modules.items() if name.startswith(package)]
    cached = {id(value): value for module in modules for value in vars(module).values() if _is_cached(value, package)}
    if any(function.cache_info().currsize for function in cached.values()):
        for function in cached.values():
            function.cache_clear()
        gc.collect()


def _is_cached(value: object, package: str) -> bool:
    return isinstance(value, functools._lru_cache_wrapper) and value.__wrapped__.__module__.startswith(package)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test starts from the same random numbers, alone or in company."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def poisoned_empty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that AttnScope allocates without writing to it holds NaN, so reading it fails a comparison."""
    if request.node.get_closest_marker("compiled"):
        trace_rules.clear_lru_cache()  # filled, maybe, while another test had NaN in them
        return
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))


def poisoned(allocate: Callable[..., torch.Tensor], source: str = SOURCE) -> Callable[..., torch.Tensor]:
    """An allocating function that fills floating-point memory with NaN when code under `source` calls it."""

    @functools.wraps(allocate)
    def allocate_with_nan(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = allocate(*args, **kwargs)
        ours = sys._getframe(1).f_code.co_filename.startswith(source)
        return tensor.fill_(float("nan")) if ours and (tensor.is_floating_point() or tensor.is_complex()) else tensor

    return allocate_with_nan
