"""Runs kernels in Triton's interpreter, in a process of its own: it must be chosen before the kernels are imported.

The process reads the name of a case from each line of its input and answers with the list of complaints as JSON.
Memory that is not part of a tensor must not be touched, and memory that was not written holds NaN. The interpreter of
triton 3.7 multiplies the bits of bf16 tiles as integers, so they are converted to fp32 first, which is exact.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import numpy as np
import torch
from torch import Tensor


class OutsideError(Exception):
    """A kernel reads or writes memory outside of the tensors that it was given."""


class Memory:
    """The elements of the tensors that a kernel was given."""

    def __init__(self, tensors: list[Tensor]) -> None:
        elements = []
        for tensor in tensors:
            offsets = np.zeros(1, np.int64)
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
                offsets = np.add.outer(offsets, np.arange(size) * stride).ravel()
            elements.append(tensor.data_ptr() + offsets * tensor.element_size())
        self.elements = np.unique(np.concatenate(elements))

    def check(self, what: str, addresses: np.ndarray, mask: np.ndarray) -> None:
        """Raise OutsideError unless all of these addresses are elements."""
        addresses, mask = np.broadcast_arrays(addresses, mask)
        used = addresses[mask.astype(bool)].astype(np.int64)
        at = np.searchsorted(self.elements, used).clip(max=len(self.elements) - 1)
        if num_outside := np.count_nonzero(self.elements[at] != used):
            raise OutsideError(f"{what} of {num_outside} addresses outside of all tensors")


def patch_interpreter() -> None:
    """Check addresses, multiply bf16 tiles in fp32, and prepare each module once per launch, not at each call."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    executor: Any = interpreter.GridExecutor
    function: Any = interpreter.InterpretedFunction
    memory: list[Memory] = []
    prepared: set[int] = set()
    call, dot = executor.__call__, builder.create_dot
    load, store = builder.create_masked_load, builder.create_masked_store

    def checked_call(self: Any, *args: Any, **kwargs: Any) -> None:
        memory[:] = [Memory([arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor) and arg.numel()])]
        prepared.clear()
        call(self, *args, **kwargs)

    def call_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self.fn.__globals__) not in prepared:
            prepared.add(id(self.fn.__globals__))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        memory[0].check("read", pointers.data, mask.data)
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        memory[0].check("write", pointers.data, mask.data)
        return store(self, pointers, value, mask, *rest)

    def to_fp32(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def exact_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, to_fp32(a), to_fp32(b), *rest)

    executor.__call__, builder.create_dot, function.__call__ = checked_call, exact_dot, call_function
    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store


def poison_empty() -> None:
    """Fill memory that is allocated without being written with NaN."""
    allocate = torch.empty

    def empty(*args: Any, **kwargs: Any) -> Tensor:
        tensor = allocate(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(-7)

    torch.empty = empty


def main() -> None:
    """Answer each line."""
    assert os.environ["TRITON_INTERPRET"] == "1"
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    patch_interpreter()
    from tests.attention.triton.cases import ALL_TRIPLES, THINNED
    from tests.attention.triton.judge import judge

    poison_empty()
    known = {str(case): case for case in (*THINNED, *ALL_TRIPLES)}
    for line in sys.stdin:
        try:
            complaints = judge(known[line.rstrip("\n")])
        except Exception:
            complaints = [traceback.format_exc()]
        sys.stdout.write(json.dumps(complaints) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
