"""Runs kernels in Triton's interpreter, in a process of its own: it must be chosen before the kernels are imported.

The process reads a case from each line of its input, runs it in a fork, and answers with `Answer` as JSON. A line may
name a folder, whose copy of the kernels is then imported instead.
Memory that is not part of a tensor must not be touched, and memory that was not written holds NaN. The interpreter of
triton 3.7 multiplies the bits of bf16 tiles as integers, so they are converted to fp32 first, which is exact.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor


class Request(TypedDict):
    """A case, and the folder of the kernels to test; None for those of the library."""

    case: list[Any]
    folder: str | None


class Answer(TypedDict):
    """What is wrong with the results; and if there are none, why."""

    complaints: list[str]
    failure: str | None


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


def answer(request: Request) -> Answer:
    """Run the kernels on a case and compare their results."""
    import attnscope.attention.triton as package
    from tests.attention.triton.cases import Case

    if request["folder"] is not None:
        package.__path__ = [request["folder"]]
    try:
        from tests.attention.triton.judge import judge

        return {"complaints": judge(Case(*request["case"])), "failure": None}
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        if isinstance(error, OutsideError):
            return {"complaints": [str(error)], "failure": None}
        return {"complaints": [], "failure": traceback.format_exc()}


def main() -> None:
    """Answer each line."""
    assert os.environ["TRITON_INTERPRET"] == "1"
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    patch_interpreter()
    poison_empty()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
            sys.stdout.flush()
            os._exit(0)
        if status := os.waitpid(child, 0)[1]:
            sys.stdout.write(json.dumps(Answer(complaints=[], failure=f"the process ended with {status}")) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
