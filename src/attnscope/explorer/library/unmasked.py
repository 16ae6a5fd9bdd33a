"""A trace without its causal mask: the same queries and keys, where each query also attends to later keys.

In: a trace. Out: a trace that shares its tensors, or None if nothing is causal or the weights would not be exact. It is
not what the model computed. Keys that are masked for other reasons, such as padding and other documents, stay masked.
Does not know: models. Memory: O(layers); the log-sum-exp is computed again on demand.
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

NOTE = "Without the causal mask: not what the model computed."
"""Shown with every picture of such a trace."""

UNLIMITED = 2**31 - 1
"""A window that no sequence exceeds."""

SUPPORTED_SCORES = (Softcap, Temperature, ALiBi, Sinks)
"""Score modifiers that are defined for masked keys, too; a bias tensor may have zeros there."""


def remove_causal_mask(trace: Trace) -> Trace | None:
    """Remove the causal part of all masks; a sliding window stays as it is on its left side.

    Args:
        trace: A trace.

    Returns:
        The trace without causal masks. None if no layer is causal, if a causal layer has only weights or statistics,
        or if a mask cannot be split.
    """
    remover = _MaskRemover()
    try:
        layers = {name: _remove_mask(layer, remover) for name, layer in trace.layers.items()}
    except UnsupportedError:
        return None
    if all(layers[name] is layer for name, layer in trace.layers.items()):
        return None
    changed = copy(trace)
    changed.layers, changed.errors = layers, {}  # those were errors of what the model computed
    return changed


def _remove_mask(layer: AnyLayer, remover: _MaskRemover) -> AnyLayer:
    """Return the layer without its causal mask, or the layer itself if it has none."""
    if not isinstance(layer, Layer):
        raise UnsupportedError("remove_causal_mask: expected queries and keys, got weights or statistics")
    call = layer.merge_calls()
    mask = remover.remove(call.mask)
    if mask is call.mask:
        return layer
    if call.score_mod is not None and not all(isinstance(part, SUPPORTED_SCORES) for part in call.score_mod.parts):
        raise UnsupportedError(f"remove_causal_mask: {call.score_mod} is not defined for masked keys")
    return Layer(layer.name, replace(call, mask=mask, whole=None, lse=None), cross=layer.cross)


class _MaskRemover:
    """Removes the causal part of masks; most layers share one mask, which is processed once."""

    def __init__(self) -> None:
        self._results: dict[int, tuple[Mask, Mask]] = {}  # by id; keeps the original alive

    def remove(self, mask: Mask) -> Mask:
        """Return the mask without its causal part, or the mask itself if it has none."""
        if id(mask) not in self._results:
            self._results[id(mask)] = mask, self._remove(mask)
        return self._results[id(mask)][1]

    def _remove(self, mask: Mask) -> Mask:
        if isinstance(mask, Causal):
            return Full()
        if isinstance(mask, Window) and not mask.after:
            return Window(before=mask.before, after=UNLIMITED, offset=mask.offset)
        if isinstance(mask, Full | Window | Padding | Prefix | Documents) or _is_key_mask(mask):
            return mask
        if isinstance(mask, And | Or):
            return self._pair(mask)
        if isinstance(mask, Not) and self.remove(mask.inner) is mask.inner:
            return mask
        if isinstance(mask, StackedMask) and all(isinstance(self.remove(step.mask), Full) for step in mask.steps):
            return Full()
        raise UnsupportedError(f"remove_causal_mask: cannot split {mask}")

    def _pair(self, mask: And | Or) -> Mask:
        first, second = self.remove(mask.first), self.remove(mask.second)
        if first is mask.first and second is mask.second:
            return mask
        if isinstance(first, Full) or isinstance(second, Full):
            if isinstance(mask, Or):
                return Full()
            return second if isinstance(first, Full) else first
        return type(mask)(first, second)


def _is_key_mask(mask: Mask) -> bool:
    """Whether a boolean mask is the same for all queries."""
    table = getattr(mask, "attend", None)
    return table is not None and table.shape[-2] == 1
