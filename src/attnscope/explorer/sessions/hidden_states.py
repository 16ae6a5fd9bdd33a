"""The hidden states of texts that a session has run, from which logits follow.

In: a model while it runs. Out: its hidden states after the last norm, as long as the trace exists.
Does not know: predictions. Memory: (tokens, hidden_size) per trace.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attnscope.models import Decoder
from attnscope.recording import Trace


class HiddenStates:
    """The hidden states of traces, from which logits follow, as long as the traces exist."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Decoder, Tensor]] = {}

    def get(self, trace: Trace) -> tuple[Decoder, Tensor] | None:
        """Return the model and the hidden states (tokens, hidden_size) of a trace, if they are kept."""
        return self._kept.get(id(trace))

    def drop(self, trace: Trace) -> None:
        """Drop the hidden states of a trace."""
        self._kept.pop(id(trace), None)

    def keep(self, trace: Trace, model: nn.Module, parts: list[Tensor]) -> None:
        """Keep the hidden states of a trace of a single text."""
        if isinstance(model, Decoder) and parts and len(parts[0]) == 1:
            self._kept[id(trace)] = model, torch.cat([part[0] for part in parts])
            weakref.finalize(trace, self._kept.pop, id(trace), None).atexit = False


@contextmanager
def collect_hidden_states(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the hidden states after the last norm of a `Decoder` while it runs; of other models, nothing."""
    parts: list[Tensor] = []
    if not isinstance(model, Decoder):
        yield parts
        return
    handle = model.norm.register_forward_hook(lambda _module, _inputs, output: parts.append(output.detach()))
    try:
        yield parts
    finally:
        handle.remove()
