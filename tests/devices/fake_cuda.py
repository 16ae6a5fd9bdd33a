"""CUDA tensors without numbers, and a count of what a GPU would have to do with them.

Inside `with fake_cuda():`, `torch.empty(..., device="cuda")` gives a tensor with shape, strides, dtype and device.
Operators compute these and nothing else, so a call of any size takes milliseconds. `count_work` counts the kernels that
a call launches, the bytes they read and write, and where the host waits for a result.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import attnscope
from tests.devices.no_op_guard import no_op_guards

try:
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
except ImportError:  # pragma: no cover - private names of torch
    DataDependentOutputException, FakeTensorMode = RuntimeError, None

Result = TypeVar("Result")

SOURCE = str(Path(attnscope.__file__).parent)
ATTENTION = "_scaled_dot_product"
NO_KERNEL = {
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "broadcast_to",
    "detach",
    "diagonal",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "expand",
    "lift_fresh",
    "new_empty",
    "new_empty_strided",
    "permute",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
}
WAITS = {
    "_local_scalar_dense",
    "_unique2",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
}
"""Operators whose result, or the size of it, the host has to wait for."""


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Give tensors on "cuda" a shape and no numbers."""
    if FakeTensorMode is None:
        pytest.skip(f"torch {torch.__version__} has no FakeTensorMode in torch._subclasses.fake_tensor")
    with no_op_guards(), FakeTensorMode(allow_non_fake_inputs=True):
        yield


class Work(TorchDispatchMode):
    """Counts kernels, bytes and waits of the operators that run inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.num_bytes = 0
        self.waits: Counter[str] = Counter()
        self.attention_calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    @property
    def num_kernels(self) -> int:
        """The number of launched kernels."""
        return self.kernels.total()

    @property
    def attention(self) -> dict[str, int]:
        """The number of calls of each fused attention operator."""
        return {name: count for name, count in self.kernels.items() if name.startswith(ATTENTION)}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first call loads torch's compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if waits_for_host(name, args, kwargs):
            self.waits[f"{name} at {calling_line()}"] += 1
        try:
            result = func(*args, **kwargs)
        except DataDependentOutputException:
            if name != "_local_scalar_dense":
                raise
            dtype = args[0].dtype
            return 1.0 if dtype.is_floating_point else True if dtype == torch.bool else 1  # to go on counting
        is_kernel = not name.startswith("prim::") and name.rstrip("_") not in NO_KERNEL
        if is_kernel and is_on_gpu((args, kwargs, result)):
            self.kernels[name] += 1
            self.num_bytes += sum(map(_count_bytes, tree_leaves((args, kwargs, result))))
            if name.startswith(ATTENTION):
                self.attention_calls.append((name, args, kwargs))
        return result


def count_work(call: Callable[[], Result]) -> tuple[Result, Work]:
    """Return the result of a call on fake tensors, and its work."""
    with torch.no_grad(), Work() as work:
        result = call()
    return result, work


def waits_for_host(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the host needs a number, or the size, of a tensor on the GPU."""
    if not is_on_gpu((args, kwargs)):
        return False
    if name in ("_to_copy", "copy_"):
        target = kwargs.get("device") if name == "_to_copy" else args[0].device
        return target is not None and torch.device(target).type == "cpu"
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name == "index":
        return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return name in WAITS


def calling_line() -> str:
    """File and line of the library's code that is running."""
    ours = [frame for frame in traceback.extract_stack() if frame.filename.startswith(SOURCE)]
    return f"{ours[-1].filename.removeprefix(SOURCE + '/')}:{ours[-1].lineno}" if ours else "a test"


def is_on_gpu(leaves: Any) -> bool:
    """Whether any of the tensors is on another device than the CPU."""
    return any(_is_gpu_tensor(leaf) for leaf in tree_leaves(leaves))


def _is_gpu_tensor(leaf: object) -> TypeGuard[Tensor]:
    return isinstance(leaf, Tensor) and leaf.device.type not in ("cpu", "meta")


def _count_bytes(leaf: object) -> int:
    """Bytes of a tensor on the GPU; axes that were expanded are read once."""
    if not _is_gpu_tensor(leaf):
        return 0
    sizes = [size for size, stride in zip(leaf.shape, leaf.stride(), strict=True) if stride or not size]
    return math.prod(sizes) * leaf.element_size()
