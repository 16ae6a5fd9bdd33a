"""Any PyTorch model in one pass becomes a `Trace`: matrices of attention that are not built, and their tokens.

The package can be called: `sightline.record(model, tokenizer)` is `sightline.record.record(model, tokenizer)`.
"""

import inspect
import sys
from types import ModuleType

from sightline.record.estimates import Estimate, estimate
from sightline.record.files.opening import open_trace as open  # noqa: A004 - as sightline.open
from sightline.record.loading import load
from sightline.record.reading import read
from sightline.record.recorder import record
from sightline.record.trace import Trace

__all__ = ["Estimate", "Trace", "estimate", "load", "open", "read", "record"]


class _Callable(ModuleType):
    """A package that is called like the function it is for: importing the one would hide the other."""

    __call__ = staticmethod(record)


sys.modules[__name__].__class__ = _Callable
__signature__ = inspect.signature(record)  # for the help of notebooks
