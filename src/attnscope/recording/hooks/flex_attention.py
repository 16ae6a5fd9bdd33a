"""FlexAttention is refused by name.

In: a function that a model calls, or the error of a with block. Out: an UnsupportedError.
FlexAttention compiles its call, also when it is called directly, and the compiler cannot trace a TorchFunctionMode. Its
error is about the mode; `refuse_flex_attention` replaces it. When compiled code runs eagerly, the call itself arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch._ops import HigherOrderOperator

from attnscope.errors import UnsupportedError

NAME = "flex_attention"
MESSAGE = (
    "FlexAttention (torch.nn.attention.flex_attention) was called, which cannot be intercepted; use "
    "F.scaled_dot_product_attention, or load a transformers model with attn_implementation='sdpa'"
)


@contextmanager
def refuse_flex_attention() -> Iterator[None]:
    """Raise an UnsupportedError instead of the compiler's error about FlexAttention."""
    try:
        yield
    except Exception as error:
        kind = type(error)
        if (kind.__module__, kind.__name__) == ("torch._dynamo.exc", "Unsupported") and NAME in str(error):
            raise UnsupportedError(MESSAGE) from error
        raise


def is_flex_attention(function: Callable) -> bool:
    """Whether a function is the operator that FlexAttention calls."""
    return isinstance(function, HigherOrderOperator) and function.name() == NAME
