"""What heads say, changed on its way into the output projection.

In: a model and a changer. Out: while a changer is at work, what it hands on in this thread takes the place of what the
heads of the modules that it wants have said: right after the attention function, where heads are still apart.
Does not know: which heads, what they are changed to. Memory: a copy of what heads say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.attention import attend
from attnscope.attention.rule import in_four
from attnscope.recording.watch.listeners import Changer, already_told, calling_module, changers, changing, is_told
from attnscope.recording.watch.torch_calls import arguments_of, in_batch_and_head, reader_of
from attnscope.recording.watch.transformers_calls import watched

_projecting: ContextVar[bool] = ContextVar("projecting", default=False)
"""Whether an inner changer is about to apply all of them to a function that has its projection inside."""


@contextmanager
def changed(model: nn.Module, changer: Changer) -> Iterator[None]:
    """Have what the heads of a model say changed, in this thread."""
    with ExitStack() as stack:
        stack.enter_context(watched(model))
        stack.enter_context(changing(changer))
        stack.enter_context(_Changes(changer))
        yield


class _Changes(TorchFunctionMode):
    """Changes what the attention functions of PyTorch, and AttnScope's, return in this thread."""

    def __init__(self, changer: Changer) -> None:
        super().__init__()
        self._changer = changer

    def __torch_function__(self, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if reader_of(function) is None or is_told() or _projecting.get() or self._changer not in changers():
            return function(*args, **kwargs)
        module = calling_module(self._changer)
        if module is None or not self._changer.concerns(module):
            return function(*args, **kwargs)
        arguments = arguments_of(function, args, kwargs)
        if function is F.multi_head_attention_forward:
            token = _projecting.set(True)
            try:
                result = function(*args, **kwargs)
            finally:
                _projecting.reset(token)
            return self._projected(module, arguments), result[1]
        result = function(*args, **kwargs)
        output, *rest = result if isinstance(result, tuple) else (result,)
        heads = in_four(output) if function is attend else in_batch_and_head(output)
        with already_told():
            output = self._changer.change(module, heads, arguments["key"].shape[-2]).reshape(output.shape)
        return (output, *rest) if rest else output

    def _projected(self, module: nn.Module, arguments: Mapping[str, Any]) -> Tensor:
        """What a function says that has the projection inside: its heads are computed once more, and projected."""
        reader = reader_of(F.multi_head_attention_forward)
        assert reader is not None
        with already_told():
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
            for changer in changers():  # the outer ones have left it to this one
                if changer.wants(module) and changer.concerns(module):
                    heads = changer.change(module, heads, call.key.shape[2])
            rows = heads.permute(2, 0, 1, 3).flatten(2)
            output = F.linear(rows, arguments["out_proj_weight"], arguments["out_proj_bias"])
        return output if arguments["query"].dim() == 3 else output.squeeze(1)
