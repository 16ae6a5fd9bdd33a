"""The hidden states of texts that a session has run, from which logits follow.

In: a model while it runs. Out: its hidden states after the last norm, as long as the trace exists.
Does not know: predictions. Memory: (tokens, hidden_size) per trace.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnscope.models import Decoder
from attnscope.recording import Trace


class HiddenPart(NamedTuple):
    """The tokens that a model read at once, and their hidden states."""

    ids: Tensor
    """(batch, tokens)"""
    states: Tensor
    """(batch, tokens, hidden_size)"""


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

    def keep(self, trace: Trace, model: nn.Module, parts: list[HiddenPart]) -> None:
        """Keep the hidden states of a trace of a single text, if the last parts are those of its tokens."""
        ids = trace.ids(0)[1]
        if not isinstance(model, Decoder) or ids is None or len(ids) > 1:
            return
        count, first = 0, len(parts)
        while first and count < ids.shape[1]:  # before them, the model may have run on some tokens to estimate the time
            first -= 1
            count += parts[first].ids.shape[-1]
        chosen = parts[first:]
        if not chosen or not torch.equal(torch.cat([part.ids for part in chosen], -1).cpu(), ids.cpu()):
            return
        self._kept[id(trace)] = model, torch.cat([part.states[0] for part in chosen])
        weakref.finalize(trace, self._kept.pop, id(trace), None).atexit = False


@contextmanager
def collect_hidden_states(model: nn.Module) -> Iterator[list[HiddenPart]]:
    """Collect the hidden states after the last norm of a `Decoder` while it runs; of other models, nothing."""
    parts: list[HiddenPart] = []
    if not isinstance(model, Decoder):
        yield parts
        return
    seen: list[Tensor] = []

    def add(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        parts.append(HiddenPart(seen[-1], output.detach()))
        seen.clear()

    handles = (
        model.embedding.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0].detach())),
        model.norm.register_forward_hook(add),
    )
    try:
        yield parts
    finally:
        for handle in handles:
            handle.remove()
