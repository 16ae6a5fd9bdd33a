"""Queries and keys of the most extreme heads of a step, so that an alert can show the attention of that moment.

In: the calls of a step with their measurements. Out: a trace of one head of one sequence of a layer. For each layer,
two heads are kept: that with the largest logit, and that with most collapsed rows.
Does not know: rules, files. Memory: two heads of one sequence for each layer, none of them above MAX_BYTES.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.recording.call import Call, MaskCopies, copy_call, narrow_score
from attnscope.recording.hooks.input_ids import ObservedIds
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.token_texts import Texts
from attnscope.recording.trace import Trace
from attnscope.telemetry.measurement import Measurement

MAX_BYTES = 2**25
"""The queries and keys of a longer sequence are not kept."""


class KeptCall(NamedTuple):
    """One head of one sequence of a call; no value has been read from the device yet."""

    score: Tensor  #: by which the head was chosen, ()
    head: Tensor  #: ()
    sequence: Tensor  #: ()
    query: Tensor  #: (1, 1, queries, dim)
    key: Tensor  #: (1, 1, keys, dim)
    call: Call  #: with the mask of all sequences and heads, without queries, keys and values
    ids: Tensor | None  #: token ids of all sequences, (batch, positions)


class KeptCalls:
    """The calls that are kept of the current step."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], KeptCall] = {}
        self._ids: dict[str, Tensor] = {}

    def clear(self) -> None:
        """Begin a new step."""
        self._found.clear()
        self._ids.clear()

    def note_ids(self, observed: ObservedIds) -> None:
        """Remember the token ids that a part of the model was called with."""
        self._ids[observed.part] = observed.ids

    def add(self, layer: str, call: Call, measurement: Measurement) -> None:
        """Keep the most extreme heads of a call, unless those of an earlier call of this step are more extreme."""
        scores = {
            "logit": measurement.maxima.logit.nan_to_num(math.inf, math.inf, -math.inf),
            "collapsed": measurement.sums.entropy_counts[:, 0] / measurement.sums.rows.clamp(min=1),
        }
        length = call.query.shape[2] + call.key.shape[2]
        if length * call.query.shape[3] * call.query.element_size() > MAX_BYTES:
            return
        for name, values in scores.items():
            score, head = values.max(0)
            before = self._found.get((layer, name))
            if before is None or bool(score > before.score):
                self._found[layer, name] = self._keep(layer, call, score, head, measurement.place.sequence[head])

    def _keep(self, layer: str, call: Call, score: Tensor, head: Tensor, sequence: Tensor) -> KeptCall:
        sequence = sequence.clamp(min=0)
        group = call.query.shape[1] // call.key.shape[1]
        query = call.query.detach().index_select(0, sequence[None]).index_select(1, head[None])
        key = call.key.detach().index_select(0, sequence[None]).index_select(1, (head // group)[None])
        kept = replace(call, query=query, key=key, value=None, lse=None, whole=None)
        return KeptCall(score, head, sequence, query, key, kept, self._ids_of(layer, call))

    def _ids_of(self, layer: str, call: Call) -> Tensor | None:
        """The ids of the innermost part around a layer whose shape is that of the call."""
        shape = call.query.shape[0], call.query.shape[2]
        fitting = [part for part, ids in self._ids.items() if layer.startswith(part) and tuple(ids.shape) == shape]
        return self._ids[max(fitting, key=len)] if fitting else None

    def trace(self, layer: str, head: int, first_head: int, model: str, tokenizer: Any = None) -> Trace | None:
        """The trace of a head, if it was kept; waits for its device.

        Args:
            layer: The name of the layer.
            head: The head, counted over all ranks.
            first_head: The first head that this rank has.
            model: The name of the model.
            tokenizer: Decodes the tokens.
        """
        for (name, _), kept in self._found.items():
            if name == layer and int(kept.head) == head - first_head:
                return _to_trace(layer, head, kept, Trace(model, tokenizer))
        return None


def _to_trace(layer: str, shown: int, kept: KeptCall, trace: Trace) -> Trace:
    head, sequence = int(kept.head), int(kept.sequence)
    batch, heads = slice(sequence, sequence + 1), [head]
    narrowed = replace(
        kept.call,
        heads=(shown,),
        mask=kept.call.mask.narrow(batch, heads),
        score_mod=narrow_score(kept.call.score_mod, batch, heads),
    )
    copied = copy_call(narrowed, None, values=False, copies=MaskCopies()).to(torch.device("cpu"))
    trace.layers[layer] = Layer(layer, copied, cross=bool(kept.call.cross))
    if kept.ids is not None:
        trace.texts = [Texts("", kept.ids[batch].cpu())]
    return trace
