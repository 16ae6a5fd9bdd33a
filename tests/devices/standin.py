"""Devices that this machine does not have: tensors in main memory that are strict about where they are.

Inside `with Standins() as standins:`, `tensor.to("cuda")` gives a tensor that says it is there, with numbers that the
CPU computes. As with real ones, it does not mix with tensors of other devices, there is no float64 on "mps", and fused
attention on "cuda" takes and returns tensors in the form of the CUDA operators (`cuda_operators`). `standins.waits`
counts where the host waits for a device.

Two things do not work: autograd, whose engine asks for the driver of a GPU (call the backward directly), and
`torch.inference_mode`, which does not support tensors that hold others.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.devices import cuda_operators
from tests.devices.fake_cuda import calling_line, waits_for_host
from tests.devices.no_op_guard import indexed, no_op_guards

CPU = torch.device("cpu")
COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
INDEXING = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
}


class Standin(Tensor):
    """A tensor that reports another device than that of the tensor it holds."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> Standin:
        if device.type == "mps" and held.dtype == torch.float64:
            raise TypeError(f"{device} has no float64")
        options: Any = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made: Any = Tensor._make_wrapper_subclass(cls, held.shape, device=device, **options)
        made.held = held
        return made

    def tolist(self) -> Any:
        """The numbers as a list, for which the host waits."""
        if Standins.current is not None:
            Standins.current.waits[f"tolist at {calling_line()}"] += 1
        return self.held.tolist()

    def new_tensor(self, data: Any, *_: Any, **options: Any) -> Tensor:
        """A tensor of this device; without a driver, torch makes one on the CPU."""
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **options})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Standins(TorchDispatchMode):
    """Gives tensors on "cuda" and "mps" numbers, and counts waits and calls of attention operators."""

    current: Standins | None = None

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.attention: Counter[str] = Counter()
        self._contexts = ExitStack()

    def __enter__(self) -> Standins:
        self._contexts.enter_context(no_op_guards())
        self._contexts.enter_context(mock.patch.object(Standins, "current", self))
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) makes one on the CPU and moves it
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(False)
        self._contexts.close()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first call loads torch's compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if waits_for_host(name, args, kwargs or {}):
            self.waits[f"{name} at {calling_line()}"] += 1
        if name.startswith("_scaled_dot_product"):
            self.attention[name] += 1
        return run(func, args, kwargs or {})


def move_module(module: Module, device: str) -> None:
    """Move parameters and buffers to a device, without asking its driver."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = Parameter(parameter.detach().to(device), requires_grad=False)
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else buffer.to(device)


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the held tensors; the result is on the device of the given ones."""
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    device = _device_of(func, given, kwargs.get("device"))
    operator = cuda_operators.find(func, given)
    wrapped = {id(one.held): one for one in given if isinstance(one, Standin)}
    args, kwargs = tree_map(lambda leaf: leaf.held if isinstance(leaf, Standin) else leaf, (args, kwargs))
    if kwargs.get("device") is not None:
        kwargs["device"] = CPU

    def place(result: Any) -> Any:
        if id(result) in wrapped:  # an operator that works in place
            return wrapped[id(result)]
        return Standin(result, device) if isinstance(result, Tensor) and device != CPU else result

    return tree_map(place, operator(*args, **kwargs))


def _device_of(func: Any, given: list[Tensor], asked: Any) -> torch.device:
    """The device of the result; raises if the tensors are on several."""
    if func in COPIES:
        return given[0].device if asked is None else indexed(torch.device(asked))
    if asked is not None:
        return indexed(torch.device(asked))
    found = {one.device for one in given if one.dim() or one.device != CPU}
    if func in INDEXING and found - {CPU}:
        found = {one.device for one in given if one.device != CPU or (one.is_floating_point() and one.dim())}
    if len(found) > 1:
        raise RuntimeError(f"{func}: expected all tensors on one device, got {sorted(map(str, found))}")
    return found.pop() if found else CPU
