"""Replace head outputs before they enter the output projection.

In: a model and an intervention. Out: inside the with block, in this thread, the intervention replaces the head outputs
of the modules that it targets, right after the attention function, where heads are still separate.
Does not know: which heads, which replacement. Memory: a copy of the head outputs of one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.attention import attend
from attnscope.attention.spec import to_4d
from attnscope.errors import UnsupportedError
from attnscope.recording.hooks.flex_attention import MESSAGE, is_flex_attention
from attnscope.recording.hooks.interception import intercept_functions
from attnscope.recording.hooks.module_stack import ModuleStack
from attnscope.recording.hooks.observers import (
    Intervention,
    current_interventions,
    intervene,
    is_suppressed,
    suppress_recording,
)
from attnscope.recording.hooks.torch_functions import bind_arguments, find_reader, to_batch_and_head
from attnscope.recording.hooks.transformers_attention import intercept_transformers

_projecting: ContextVar[bool] = ContextVar("projecting", default=False)
"""Whether an inner intervention applies all of them, to a function with a built-in output projection."""


@contextmanager
def intercept_heads(model: nn.Module, intervention: Intervention) -> Iterator[None]:
    """Apply an intervention to the head outputs of a model, in this thread."""
    with ExitStack() as stack:
        stack.enter_context(intercept_transformers(model))
        stack.enter_context(intervene(intervention))
        stack.enter_context(intercept_functions(model, partial(_TorchFunctionIntervention, intervention)))
        yield


class _TorchFunctionIntervention(TorchFunctionMode):
    """Replaces what the attention functions of PyTorch and AttnScope return in this thread."""

    def __init__(self, intervention: Intervention, modules: ModuleStack) -> None:
        super().__init__()
        self._intervention, self._modules = intervention, modules

    def __torch_function__(self, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_flex_attention(function) and self._modules.innermost() is not None:
            raise UnsupportedError(MESSAGE)
        reader = find_reader(function)
        if reader is None or is_suppressed() or _projecting.get() or self._intervention not in current_interventions():
            return function(*args, **kwargs)
        module = self._modules.innermost()
        if module is None or not self._intervention.owns(module) or not self._intervention.targets(module):
            return function(*args, **kwargs)
        arguments = bind_arguments(function, args, kwargs)
        if function is F.multi_head_attention_forward:
            token = _projecting.set(True)
            try:
                result = function(*args, **kwargs)
            finally:
                _projecting.reset(token)
            return self._recompute_projected(module, arguments), result[1]
        result = function(*args, **kwargs)
        output, *rest = result if isinstance(result, tuple) else (result,)
        heads = to_4d(output) if function is attend else to_batch_and_head(output)
        with suppress_recording():
            read_call = partial(reader, **arguments)
            heads = self._intervention.apply(module, heads, arguments["key"].shape[-2], read_call)
            output = heads.reshape(output.shape)
        return (output, *rest) if rest else output

    def _recompute_projected(self, module: nn.Module, arguments: Mapping[str, Any]) -> Tensor:
        """The output of a function with a built-in projection: recompute its heads, replace them, project them."""
        reader = find_reader(F.multi_head_attention_forward)
        assert reader is not None
        with suppress_recording():
            call = reader(**arguments)
            assert call.value is not None
            dropout = arguments["dropout_p"] if arguments["training"] else 0.0
            heads = attend(
                call.query,
                call.key,
                call.value,
                mask=call.mask,
                scale=call.scale,
                score_mod=call.score_mod,
                dropout=dropout,
            )
            for intervention in current_interventions():  # also the outer ones, which skip this function
                if intervention.owns(module) and intervention.targets(module):
                    heads = intervention.apply(module, heads, call.key.shape[2], lambda: call)
            rows = heads.permute(2, 0, 1, 3).flatten(2)
            output = F.linear(rows, arguments["out_proj_weight"], arguments["out_proj_bias"])
        return output if arguments["query"].dim() == 3 else output.squeeze(1)
