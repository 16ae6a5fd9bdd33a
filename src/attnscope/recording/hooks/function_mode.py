"""Whether a model needs a TorchFunctionMode to have its attention intercepted.

In: a model whose transformers configs name our implementation. Out: False only if all of its attention goes through
AttentionInterface. Memory: O(classes).

A mode is called for every function of torch, `.shape` included, and doubles the time of a decoding step. It is left out
for models that consist of classes of transformers and torch.nn alone, where no file of these classes names an attention
function of torch. Hooks and forwards that other code has put on modules may compute anything, so they need the mode.
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache

from torch import nn

from attnscope.recording.hooks.module_stack import ATTENTION, PLAIN
from attnscope.recording.hooks.transformers_attention import NAME, is_transformers_model

TORCH_ATTENTION = re.compile(
    r"scaled_dot_product|multi_head_attention|\bMultiheadAttention\b|sdpa_attention|flex_attention"
)
"""What a file that calls attention functions of torch contains."""
INTERFACE = "ALL_ATTENTION_FUNCTIONS"
"""The registry in which an attention layer of transformers looks up its function."""
KNOWN_HOOKS = ("transformers.", "attnscope.")


def needs_function_mode(model: nn.Module) -> bool:
    """Whether attention of a model may be computed by other functions than those of AttentionInterface."""
    return not is_transformers_model(model) or any(map(_may_bypass_interface, model.modules()))


def _may_bypass_interface(module: nn.Module) -> bool:
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    if "forward" in vars(module) or any(not _origin(hook).startswith(KNOWN_HOOKS) for hook in hooks):
        return True
    kind = type(module)
    if _uses_interface(kind) and getattr(getattr(module, "config", None), "_attn_implementation", None) != NAME:
        return True
    return _may_call_torch_attention(kind)


def _origin(hook: object) -> str:
    return getattr(hook, "__module__", None) or ""


@cache
def _uses_interface(kind: type[nn.Module]) -> bool:
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return code is not None and INTERFACE in code.co_names


@cache
def _may_call_torch_attention(kind: type[nn.Module]) -> bool:
    """Whether files of a class and of its bases name attention functions of torch, or belong to neither library."""
    if issubclass(kind, ATTENTION):
        return True
    return any(map(_file_names_attention, {base.__module__ for base in kind.__mro__}))


@cache
def _file_names_attention(name: str) -> bool:
    if name.startswith("transformers.models."):
        try:
            return TORCH_ATTENTION.search(inspect.getsource(sys.modules[name])) is not None
        except (OSError, TypeError, KeyError):
            return True
    return name not in ("builtins", "abc", "typing") and not name.startswith((*PLAIN, "transformers."))
