"""What if a model could look ahead: the queries and keys of a trace, without the mask that lets them look back only.

In: a trace. Out: another one that shares its tensors; or None, where no query was kept from looking ahead, or where the
answer would not be exact. It is not what the model computed. Keys that are hidden for another reason, as padding and
other documents are, stay hidden.
Does not know: models. Memory: O(layers); the normalisers are computed anew when they are asked for.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from attnscope.attention import (
    ALiBi,
    Causal,
    Documents,
    Full,
    Mask,
    Padding,
    Prefix,
    Sinks,
    Softcap,
    Temperature,
    Window,
)
from attnscope.attention.algebra import And, Not, Or
from attnscope.errors import UnsupportedError
from attnscope.recording import Trace
from attnscope.recording.files.saving import AnyLayer
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.step_masks import StackedMask

NOTE = "What if it could look ahead: not what the model computed."
"""What has to stand beside every picture of such a trace."""

UNLIMITED = 2**31 - 1
"""Keys that a query sees ahead of it: as many as there are in any text."""

SUPPORTED_SCORES = (Softcap, Temperature, ALiBi, Sinks)
"""Scores that say what they are for every key; a table of numbers may hold zeros for those that were hidden."""


def remove_causal_mask(trace: Trace) -> Trace | None:
    """The same trace with every query seeing the keys behind it, too; how far it looks back stays as it was.

    Layers that could look both ways, or at another text, are as they were. None where all are so; where a layer that
    could not holds weights or statistics alone; and where its mask cannot be taken apart.
    """
    seeing = _MaskRemover()
    try:
        layers = {name: _changed(layer, seeing) for name, layer in trace.layers.items()}
    except UnsupportedError:
        return None
    if all(layers[name] is layer for name, layer in trace.layers.items()):
        return None
    changed = copy(trace)
    changed.layers, changed.errors = layers, {}  # those were errors of what the model computed
    return changed


def _changed(layer: AnyLayer, seeing: _MaskRemover) -> AnyLayer:
    """A layer that can look ahead; the layer itself where it could."""
    if not isinstance(layer, Layer):
        raise UnsupportedError("what_if: weights and statistics do not tell what the hidden cells would have been")
    call = layer.joined()
    mask = seeing.ahead(call.mask)
    if mask is call.mask:
        return layer
    if call.score_mod is not None and not all(isinstance(part, SUPPORTED_SCORES) for part in call.score_mod.parts):
        raise UnsupportedError(f"what_if: {call.score_mod} is not known for keys that were hidden")
    return Layer(layer.name, replace(call, mask=mask, whole=None, lse=None), cross=layer.cross)


class _MaskRemover:
    """Masks without what keeps queries from looking ahead; layers mostly share one, which is taken apart once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Mask, Mask]] = {}  # the original stays alive, so that its id stays its own

    def ahead(self, mask: Mask) -> Mask:
        """The mask itself where it does not look at the order of query and key."""
        if id(mask) not in self._known:
            self._known[id(mask)] = mask, self._ahead(mask)
        return self._known[id(mask)][1]

    def _ahead(self, mask: Mask) -> Mask:
        if isinstance(mask, Causal):
            return Full()
        if isinstance(mask, Window) and not mask.after:
            return Window(before=mask.before, after=UNLIMITED, offset=mask.offset)
        if isinstance(mask, Full | Window | Padding | Prefix | Documents) or _is_key_mask(mask):
            return mask
        if isinstance(mask, And | Or):
            return self._pair(mask)
        if isinstance(mask, Not) and self.ahead(mask.inner) is mask.inner:
            return mask
        if isinstance(mask, StackedMask) and all(isinstance(self.ahead(step.mask), Full) for step in mask.steps):
            return Full()
        raise UnsupportedError(f"what_if: {mask} may hide keys for more than one reason")

    def _pair(self, mask: And | Or) -> Mask:
        first, second = self.ahead(mask.first), self.ahead(mask.second)
        if first is mask.first and second is mask.second:
            return mask
        if isinstance(first, Full) or isinstance(second, Full):
            if isinstance(mask, Or):
                return Full()
            return second if isinstance(first, Full) else first
        return type(mask)(first, second)


def _is_key_mask(mask: Mask) -> bool:
    """Whether a table of booleans hides the same keys from all queries."""
    table = getattr(mask, "attend", None)
    return table is not None and table.shape[-2] == 1
