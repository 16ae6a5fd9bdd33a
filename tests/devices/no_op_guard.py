"""Let a CPU build of torch handle tensors that say they are on a GPU.

Indexing, printing and copying ask the device guard of a tensor's device, and a CPU build has none for GPUs. The guard
of the "meta" device does nothing, so it can serve. `torch.cuda` also starts a driver before any operator runs.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

CPU_SLOT, META_SLOT = 0, 14  # c10/core/DeviceType.h
SLOTS = {"cuda": 1, "mps": 13}
NUM_SLOTS = 22
REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"


@contextmanager
def no_op_guards() -> Iterator[None]:
    """Give the CPU build a guard for CUDA and MPS; skips the test where torch keeps its guards elsewhere."""
    registry = _find_registry()
    added = [slot for slot in SLOTS.values() if not registry[slot]]
    for slot in added:
        registry[slot] = registry[META_SLOT]
    try:
        with mock.patch.object(torch.cuda, "_lazy_init", return_value=None), _IndexedDevices():
            yield
    finally:
        for slot in added:
            registry[slot] = None


def indexed(device: Any) -> Any:
    """A device of a GPU with its index; anything else as it is."""
    if not isinstance(device, str | torch.device) or str(device) not in SLOTS:
        return device
    return torch.device(str(device), 0)


class _IndexedDevices(TorchFunctionMode):
    """Moves tensors to "cuda:0" instead of "cuda": for the latter, torch asks the guard, which says "meta"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to:
            args, kwargs = tree_map(indexed, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _find_registry() -> ctypes.Array[ctypes.c_void_p]:
    """The guards of all devices, as c10 keeps them."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the guards of torch are found on Linux only")
    _ = torch.empty(1, device="meta")[0]  # registers the guard of "meta"
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        registry = (ctypes.c_void_p * NUM_SLOTS).in_dll(library, REGISTRY)
    except ValueError:
        pytest.skip(f"torch {torch.__version__} has no {REGISTRY}")
    if not registry[CPU_SLOT] or not registry[META_SLOT]:
        pytest.skip(f"torch {torch.__version__} keeps the guards of its devices in another order")
    return registry
