"""QK-clip: scale the query and key weights of heads whose largest logit is above a limit.

In: the statistics of a measured step, after the optimizer's step. Out: weights such that the same input would give the
limit. In grouped-query attention, the heads of a group share their key weights, so the largest logit of the group
decides for all of them. Before anything is changed, each layer is proven: see `projections`, and its logits must scale
with its queries and keys, which softcapping and biases prevent.
Does not know: optimizers, steps, ranks. Memory: the inputs of all attention layers, until they are proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError
from attnscope.recording.call import Call
from attnscope.telemetry.measurement import measure
from attnscope.telemetry.projections import Projections, find_projections, scale_rows
from attnscope.telemetry.statistics import HeadStatistics

CACHES = ("past_key_value", "past_key_values", "layer_past")
"""Arguments of transformers by which a layer would append its keys to those of the step itself."""
TOLERANCE = 1e-3


class ClippedHead(NamedTuple):
    """A head whose weights were scaled."""

    layer: str
    head: int
    max_logit: float  #: of the step
    factor: float  #: by which its logits are multiplied from now on


class LayerInput(NamedTuple):
    """What an attention layer was called with."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: torch.dtype | None


class QKClip:
    """Clips the logits of a model.

    Args:
        limit: The largest logit that is left alone.
        run: Calls a function, and returns the attention calls that it made.
    """

    def __init__(self, limit: float, run: Callable[[Callable[[], object]], list[Call]]) -> None:
        if not (math.isfinite(limit) and limit > 0):
            raise SettingError(f"clip: the limit must be a positive number, got {limit}")
        self.limit, self._run = limit, run
        self._open: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._inputs: dict[str, LayerInput] = {}
        self._layers: dict[str, Projections] = {}

    @contextmanager
    def collect_inputs(self, model: nn.Module) -> Iterator[None]:
        """Keep the inputs of modules while they run, so that `note` finds those of a layer."""

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._open[id(module)] = args, kwargs

        def after(module: nn.Module, *_: object) -> None:
            self._open.pop(id(module), None)

        with ExitStack() as stack:
            for module in model.modules():
                stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(after, always_call=True).remove)
            yield
        self._open.clear()

    def note(self, name: str, module: nn.Module, device: torch.device) -> None:
        """Keep the input of a layer that computes attention now, unless it is proven already."""
        if name not in self._layers and id(module) in self._open:
            args, kwargs = self._open[id(module)]
            autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
            kwargs = {key: None if key in CACHES else value for key, value in kwargs.items()}
            self._inputs[name] = LayerInput(module, args, kwargs, autocast)

    @property
    def is_proven(self) -> bool:
        """Whether all layers that were measured are proven, so that inputs need not be kept."""
        return bool(self._layers) and not self._inputs

    def prove(self) -> None:
        """Find the weights of each layer whose input was kept, and check that its logits scale with them.

        Raises:
            UnsupportedError: The layout of a layer cannot be proven.
        """
        for name in list(self._inputs):
            self._layers[name] = self._prove(name, self._inputs[name])
            del self._inputs[name]

    def _prove(self, name: str, layer: LayerInput) -> Projections:
        def compute() -> Call:
            calls = self._run(lambda: _call(layer))
            if len(calls) != 1:
                raise UnsupportedError(f"clip: {name} computes attention {len(calls)} times in one call, not once")
            return calls[0]

        def queries_and_keys() -> tuple[Tensor, Tensor]:
            call = compute()
            return call.query, call.key

        found = find_projections(name, layer.module, queries_and_keys)
        before = measure(compute()).maxima.logit
        blocks = [*found.queries, *found.keys]
        with scale_rows(blocks, [0.5] * len(blocks)):
            after = measure(compute()).maxima.logit * 4
        if not torch.allclose(before, after, rtol=TOLERANCE):
            raise UnsupportedError(
                f"clip: the logits of {name} are not proportional to its queries and keys, as with softcapping, ALiBi "
                "or another bias; its logits cannot be clipped this way"
            )
        return found

    def apply(self, layers: Mapping[str, HeadStatistics]) -> list[ClippedHead]:
        """Scale the weights of all heads above the limit.

        Args:
            layers: The statistics of the step by layer.

        Raises:
            UnsupportedError: A layer above the limit has not been proven.
        """
        clipped: list[ClippedHead] = []
        for name, statistics in layers.items():
            if not (statistics.max_logit > self.limit).any():
                continue
            if name not in self._layers:
                raise UnsupportedError(f"clip: the inputs of {name} were not seen, so its weights cannot be found")
            queries, keys = self._layers[name]
            group = len(queries) // len(keys)
            for number, rows in enumerate(keys):
                heads = range(number * group, (number + 1) * group)
                largest = float(np.max(statistics.max_logit[heads.start : heads.stop]))
                if largest > self.limit:
                    factor = self.limit / largest
                    for block in (rows, *(queries[head] for head in heads)):
                        block.scale(math.sqrt(factor))
                    clipped += [ClippedHead(name, head, float(statistics.max_logit[head]), factor) for head in heads]
        return clipped


def _call(layer: LayerInput) -> None:
    """Call a layer again, without dropout and gradients."""
    was_training = {module: module.training for module in layer.module.modules()}
    device = next(layer.module.parameters()).device.type
    enabled = layer.autocast is not None
    try:
        layer.module.eval()
        with torch.no_grad(), torch.autocast(device, dtype=layer.autocast, enabled=enabled, cache_enabled=False):
            layer.module(*layer.args, **layer.kwargs)
    finally:
        for module, training in was_training.items():
            module.training = training
