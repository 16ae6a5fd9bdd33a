"""Any PyTorch model in one pass becomes a `Trace`: matrices of attention that are not built, and their tokens.

The package can be called: `attnscope.record(model, tokenizer)` is `attnscope.record.record(model, tokenizer)`.
"""

import inspect
import sys
from types import ModuleType

from attnscope.record.estimates import Estimate, estimate
from attnscope.record.files.opening import open_trace as open  # noqa: A004 - as attnscope.open
from attnscope.record.loading import load
from attnscope.record.reading import read
from attnscope.record.recorder import record
from attnscope.record.trace import Trace

__all__ = ["Estimate", "Trace", "estimate", "load", "open", "read", "record"]


class _Callable(ModuleType):
    """A package that is called like the function it is for: importing the one would hide the other."""

    __call__ = staticmethod(record)


sys.modules[__name__].__class__ = _Callable
__signature__ = inspect.signature(record)  # for the help of notebooks
