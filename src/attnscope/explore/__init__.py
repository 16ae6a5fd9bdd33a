"""Attention in the browser: a trace of any length to move around in, and sentences to type.

The package can be called: `attnscope.explore(trace)` is `attnscope.explore.explore(trace)`.
"""

import inspect
import sys
from types import ModuleType

from attnscope.explore.library.shipped import example
from attnscope.explore.running import Server, explore, look

__all__ = ["Server", "example", "explore", "look"]


class _Callable(ModuleType):
    """A package that is called like the function it is for: importing the one would hide the other."""

    __call__ = staticmethod(explore)


sys.modules[__name__].__class__ = _Callable
__signature__ = inspect.signature(explore)  # for the help of notebooks
