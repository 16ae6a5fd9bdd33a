"""`intercept`: report every attention call of a model to an observer.

In: a model and an observer. Out: inside the with block, calls of this thread reach the observer, whichever function
computes them, and the coverage notes which layers ran. The model is restored at the end, also after an error.
Does not know: what the observer does with a call. Memory: O(modules).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from torch import nn
from torch.overrides import TorchFunctionMode

from attnscope.attention import attend
from attnscope.errors import UnsupportedError
from attnscope.recording.call import refuse_meta
from attnscope.recording.hooks.coverage import Coverage
from attnscope.recording.hooks.flex_attention import MESSAGE, is_flex_attention, refuse_flex_attention
from attnscope.recording.hooks.function_mode import needs_function_mode
from attnscope.recording.hooks.module_stack import ModuleStack
from attnscope.recording.hooks.observers import Observer, current_observers, is_suppressed, observe, suppress_recording
from attnscope.recording.hooks.softmax_products import SoftmaxProducts
from attnscope.recording.hooks.torch_functions import bind_arguments, find_reader
from attnscope.recording.hooks.transformers_attention import intercept_transformers
from attnscope.recording.hooks.verification import from_kernel


class CoverageObserver(Observer, Protocol):
    """An observer that is also told of attention which cannot be intercepted."""

    coverage: Coverage

    def on_handwritten(self, module: nn.Module | None) -> None: ...


@contextmanager
def intercept(model: nn.Module, observer: CoverageObserver) -> Iterator[None]:
    """Report the attention calls of a model to an observer, in this thread."""
    with ExitStack() as stack:
        stack.enter_context(intercept_transformers(model))
        stack.enter_context(observer.coverage.track(lambda: observer in current_observers()))
        stack.enter_context(observe(observer))
        stack.enter_context(intercept_functions(model, partial(_AttentionFunctionMode, observer)))
        yield


@contextmanager
def intercept_functions(model: nn.Module, make_mode: Callable[[ModuleStack], TorchFunctionMode]) -> Iterator[None]:
    """Enter a mode for functions of torch, if the model needs one; it is made from the stack of running modules."""
    with ExitStack() as stack:
        if needs_function_mode(model):
            stack.enter_context(refuse_flex_attention())
            modules = ModuleStack()
            stack.enter_context(modules.track(model))
            stack.enter_context(make_mode(modules))
        yield


class _AttentionFunctionMode(TorchFunctionMode):
    """Intercepts the attention functions of PyTorch and AttnScope in this thread."""

    def __init__(self, observer: CoverageObserver, modules: ModuleStack) -> None:
        super().__init__()
        self._observer, self._modules, self._products = observer, modules, SoftmaxProducts()

    def __torch_function__(self, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_suppressed() or self._observer not in current_observers():  # a task of asyncio shares the mode
            return function(*args, **kwargs)
        reader = find_reader(function)
        if reader is None:
            if is_flex_attention(function) and self._modules.innermost() is not None:
                raise UnsupportedError(MESSAGE)
            result = function(*args, **kwargs)
            if self._products.is_attention(function, args, kwargs, result):
                self._observer.on_handwritten(self._modules.innermost())
            return result
        module = self._modules.innermost()
        if module is None or not self._observer.owns(module):
            return function(*args, **kwargs)
        arguments = bind_arguments(function, args, kwargs)
        refuse_meta(arguments["query"])
        call = reader(**arguments)
        if function is attend and not arguments["return_lse"]:  # attend computes the lse anyway
            result, lse = attend(**{**arguments, "return_lse": True})
            call = replace(call, lse=lse.reshape(call.query.shape[:3]))
        else:
            result = function(*args, **kwargs)
        with suppress_recording():
            self._observer.on_attention(module, call, lambda: from_kernel(function, arguments))
        return result
