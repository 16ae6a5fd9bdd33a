"""Models compiled with torch.compile, run eagerly while their attention is intercepted.

In: a model. Out: the module that was compiled, and a context in which compiled code is not used, as Python hooks do not
run inside of it. Compiled code is used again afterwards, also after an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that torch.compile wrapped, or the model itself."""
    original = getattr(model, "_orig_mod", None)
    return original if isinstance(original, nn.Module) else model


@contextmanager
def eagerly(model: nn.Module, caller: str) -> Iterator[None]:
    """Run compiled code eagerly if the model or a submodule is compiled, with a warning that says so."""
    if not is_compiled(model):
        yield
        return
    warnings.warn(f"{caller}: {type(uncompiled(model)).__name__} is compiled; it runs eagerly here", stacklevel=2)
    with torch.compiler.set_stance("force_eager"):
        yield


def is_compiled(model: nn.Module) -> bool:
    """Whether the model or one of its submodules was compiled by torch.compile or Module.compile."""
    return any(module._compiled_call_impl is not None or hasattr(module, "_orig_mod") for module in model.modules())
