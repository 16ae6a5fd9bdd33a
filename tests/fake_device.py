"""Devices that this machine does not have: tensors in main memory that are strict about where they are.

Inside `with FakeDevices():`, `tensor.to("meta:0")` gives a tensor of that device, but with numbers. As with real ones,
it does not mix with tensors of other devices, and as on MPS, it is never float64. (Most builds of torch refuse "mps".)
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from attnscope.attention import float64

CPU = torch.device("cpu")
COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}


class DeviceTensor(Tensor):
    """A tensor that reports another device than that of the tensor it holds."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> DeviceTensor:
        if held.dtype == torch.float64:
            raise TypeError(f"{device} has no float64")
        options: Any = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made: Any = Tensor._make_wrapper_subclass(cls, held.shape, device=device, **options)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class FakeDevices(TorchDispatchMode):
    """Gives tensors of the type "meta" numbers, and takes float64 from them."""

    def __init__(self) -> None:
        super().__init__()
        self._contexts = ExitStack()

    def __enter__(self) -> FakeDevices:
        self._contexts.enter_context(mock.patch.object(float64, "WITHOUT_FLOAT64", {"meta"}))
        self._contexts.enter_context(_CopyNumbers())
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._contexts.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _CopyNumbers(TorchFunctionMode):
    """Makes tensors from numbers, and numbers from tensors, on the CPU; torch drops numbers that go to "meta"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is Tensor.tolist and isinstance(args[0], DeviceTensor):
            return args[0].held.tolist()
        return func(*args, **kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    device = _device_of(func, given, kwargs.get("device"))
    wrapped = {id(one.held): one for one in given if isinstance(one, DeviceTensor)}
    args, kwargs = tree_map(lambda leaf: leaf.held if isinstance(leaf, DeviceTensor) else leaf, (args, kwargs))
    if kwargs.get("device") is not None:
        kwargs["device"] = CPU

    def place(result: Any) -> Any:
        if id(result) in wrapped:  # an operator that works in place
            return wrapped[id(result)]
        return DeviceTensor(result, device) if isinstance(result, Tensor) and device != CPU else result

    return tree_map(place, func(*args, **kwargs))


def _device_of(func: Any, given: list[Tensor], asked: Any) -> torch.device:
    """The device of the result; raises if the tensors are on several."""
    if func in COPIES:
        return given[0].device if asked is None else _indexed(asked)
    if asked is not None:
        return _indexed(asked)
    found = {one.device for one in given if one.dim() or one.device != CPU}
    if func in INDEXING and found - {CPU}:
        found = {one.device for one in given if one.device != CPU or one.is_floating_point()}
    if len(found) > 1:
        raise RuntimeError(f"{func}: expected all tensors on one device, got {sorted(map(str, found))}")
    return found.pop() if found else CPU


def _indexed(device: Any) -> torch.device:
    device = torch.device(device)
    return torch.device(device.type, 0) if device.type == "meta" and device.index is None else device
