"""The modules of a model that are running, innermost last, kept by forward hooks.

In: a model. Out: inside the with block, the innermost module that is running in the calling thread.
Does not know: what the modules compute. Memory: O(modules).

Only calls through `module(...)` run hooks; code that calls `module.forward(...)` is attributed to the module around it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

PLAIN = ("torch.nn.modules.", "torch.ao.nn.")
"""Packages of modules that do not compute attention, except those in `ATTENTION`."""

CALL = nn.Module._call_impl.__code__
"""The code of torch that runs hooks and forward of a module, which is its local variable `self`."""

ATTENTION = (nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class ModuleStack:
    """The running modules of one model; each thread has its own."""

    def __init__(self) -> None:
        self._running = threading.local()

    def innermost(self) -> nn.Module | None:
        """The module whose forward is running in this thread; None outside of the model."""
        stack = self._stack()
        while stack and not _is_running(stack[-1]):  # torch runs no hooks after a KeyboardInterrupt
            stack.pop()
        return stack[-1] if stack else None

    @contextmanager
    def track(self, model: nn.Module) -> Iterator[None]:
        """Keep the stack while modules of the model run."""
        handles = []
        for module in model.modules():
            if isinstance(module, ATTENTION) or not type(module).__module__.startswith(PLAIN):
                handles.append(module.register_forward_pre_hook(self._push))
                handles.append(module.register_forward_hook(self._pop, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _push(self, module: nn.Module, _: object) -> None:
        self._stack().append(module)

    def _pop(self, module: nn.Module, *_: object) -> None:
        """Remove a module and all above it, which an interrupt may have left there."""
        stack = self._stack()
        while stack and stack.pop() is not module:
            pass

    def _stack(self) -> list[nn.Module]:
        if not hasattr(self._running, "stack"):
            self._running.stack = []
        return self._running.stack


def _is_running(module: nn.Module) -> bool:
    """Whether a call of a module is among the callers of this function."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CALL and frame.f_locals["self"] is module:
            return True
        frame = frame.f_back
    return False
