"""`record`: a context manager that intercepts the attention calls of a model and fills a `Trace`.

In: any PyTorch model. Out: the trace, as the model runs inside the with block, in this thread.
Does not know: how calls are intercepted (`hooks`), what is stored of them (`layers`).
Memory: that of the trace. The model is restored at the end, also after an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnscope.attention.rotary import Rotary
from attnscope.errors import SettingError, UnsupportedError
from attnscope.recording.call import Call, MaskCopies, copy_call, follows, same_numbers, with_heads
from attnscope.recording.heap import Heap
from attnscope.recording.hooks.coverage import Coverage
from attnscope.recording.hooks.eager import eagerly, uncompiled
from attnscope.recording.hooks.image_layouts import observe_images
from attnscope.recording.hooks.input_ids import PendingIds, observe_input_ids
from attnscope.recording.hooks.interception import intercept
from attnscope.recording.hooks.observers import (
    current_observers,
    is_suppressed,
)
from attnscope.recording.hooks.verification import ReferenceWeights, max_abs_error
from attnscope.recording.layers.disk import Spill, spill_to
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.statistics import StatisticsLayer
from attnscope.recording.selection import Heads, Selection, Wanted
from attnscope.recording.single_use import single_use
from attnscope.recording.token_pairs import PairCache
from attnscope.recording.trace import Trace

CROSS = re.compile(r"cross|encoder_attn|encdec|multihead_attn|src_attn|attn2", re.IGNORECASE)
"""Names that model code gives to cross-attention modules."""


@single_use
def record(
    model: nn.Module,
    tokenizer: Any = None,
    *,
    layers: Iterable[Wanted] | Wanted | None = None,
    heads: Heads | None = None,
    dtype: torch.dtype | None = None,
    keep: Literal["matrix", "statistics"] = "matrix",
    values: bool = False,
    spill: str | Path | None = None,
    verify: bool = False,
    length: int | None = None,
) -> Iterator[Trace]:
    """Record the attention of a model while it runs inside the with block, in this thread.

    Args:
        model: Any PyTorch model; it is restored at the end, also after an error.
        tokenizer: Decodes the tokens of the trace; without it they are shown as numbers.
        layers: Indices or names of the layers to record (`*` matches any characters); all of them if None.
        heads: A list of heads for all layers, or a mapping from layers to lists; all of them if None.
        dtype: Stores queries and keys in another dtype; torch.bfloat16 takes half the memory of float32.
        keep: "matrix" stores queries and keys; "statistics" reduces each layer to a `Summary` as it runs.
        values: Whether to store the values, too, for `AttentionMatrix.weighted`.
        spill: A folder to write queries, keys and values to instead of holding them in memory.
        verify: Whether to compare blocks of each layer with the model's own code; the largest absolute differences
            are in `trace.errors`.
        length: The length of the whole sequence, for keep="statistics" if the model reads it in chunks.

    Yields:
        The `Trace`, which is filled as the model runs.

    Raises:
        SettingError: An argument is not valid, or a layer or head does not exist.
        UnsupportedError: The model computed attention that cannot be recorded exactly, or none at all.

    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> text = torch.randn(1, 5, 8)
    >>> with record(nn.ModuleDict({"first": attention})) as trace:
    ...     _ = attention(text, text, text)
    >>> trace["first"].shape
    torch.Size([1, 2, 5, 5])
    """
    if not isinstance(model, nn.Module):
        raise SettingError(f"record: expected a torch.nn.Module, got {type(model).__name__}")
    if tokenizer is not None and not hasattr(tokenizer, "texts") and not hasattr(tokenizer, "decode"):
        raise SettingError(
            f"record: tokenizer is {type(tokenizer).__name__!r}, which cannot decode; to run the model on a text, call "
            "it inside the with block, or use attnscope.read(model, text, tokenizer)"
        )
    if keep not in ("matrix", "statistics"):
        raise SettingError(f"record: keep must be 'matrix' or 'statistics', got {keep!r}")
    if keep == "statistics" and (dtype is not None or values or spill is not None):
        raise SettingError(
            "record: keep='statistics' stores no queries, keys or values; leave out dtype, values and spill"
        )
    eager, model = eagerly(model, "record"), uncompiled(model)
    statistics = keep == "statistics"
    heap = Heap(every=1 if statistics else 2)  # a summary takes much longer than to allocate memory again
    keeping = LayerFactory(dtype, values, statistics, None if spill is None else spill_to(spill), length, heap=heap)
    recorder = Recorder(model, tokenizer, Selection(layers, heads), keeping, verify=verify)
    with (
        eager,
        observe_input_ids(model, recorder, recorder.ids.note),
        observe_images(model, recorder, recorder.trace.image_layouts),
        recorder.checking(model),
        intercept(model, recorder),
    ):
        yield recorder.trace
    recorder.check(finished=True)


@dataclass(frozen=True)
class LayerFactory:
    """Creates and extends the layers of a trace: which tensors of a call are stored, and where."""

    dtype: torch.dtype | None
    values: bool
    statistics: bool
    spill: Spill | None
    length: int | None
    copies: MaskCopies = field(default_factory=MaskCopies)
    heap: Heap = field(default_factory=Heap)
    pairs: PairCache = field(default_factory=PairCache)

    def begin(self, name: str, call: Call, ids: Tensor | None, *, cross: bool) -> Layer | StatisticsLayer:
        """A new layer from its first call, in a text with these ids."""
        if self.statistics:
            layer = StatisticsLayer(name, call, cross=cross, length=self.length, ids=ids, pairs=self.pairs)
            self.heap.after(call.query.nbytes)
            return layer
        return Layer(name, self._copy(call), cross=cross, spill=self.spill)

    def add(self, layer: Layer | StatisticsLayer, call: Call, ids: Tensor | None) -> None:
        """More rows of a layer; `ids` are those of the text so far."""
        if isinstance(layer, StatisticsLayer):
            layer.append(call, ids)
        else:
            layer.append(self._copy(call, row=layer.rows.stop, first_key=layer.num_known_keys(call)))

    def _copy(self, call: Call, **where: int) -> Call:
        kept = copy_call(call, self.dtype, values=self.values, copies=self.copies, **where)
        self.heap.after(kept.query.nbytes)
        return kept


@dataclass
class Run:
    """Consecutive calls of one module that extend the same sequence, as decoding steps with a KV cache do."""

    rows: range
    columns: range
    last_key: Tensor
    layer: Layer | StatisticsLayer | None

    def is_continued_by(self, call: Call) -> bool:
        """Whether a self-attention call is the next step; raises if the cached keys have changed in between."""
        if not follows(self.rows, self.columns, call):
            return False
        past = call.row - call.column
        if past and not same_numbers(call.key[:, :, past - 1 : past], self.last_key):
            raise UnsupportedError(
                "record: the keys in the KV cache have changed since the last step. Beam search reorders the cache, "
                "and some caches are rewritten; use num_beams=1, or record one forward pass over the finished text"
            )
        return True

    def advance(self, call: Call, last_key: Tensor) -> None:
        """Continue with the positions of a call."""
        self.rows, self.columns, self.last_key = call.rows, call.columns, last_key


class Recorder:
    """The observer that stores attention calls in a trace."""

    needs_lse = True

    def __init__(
        self, model: nn.Module, tokenizer: Any, selection: Selection, keeping: LayerFactory, *, verify: bool
    ) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        selection.check(self._names.values())
        self._selection, self._keeping, self._verify = selection, keeping, verify
        self.trace = Trace(type(model).__name__, tokenizer)
        encoding = getattr(getattr(model, "config", None), "position_encoding", None)
        self.trace.rotary = encoding if isinstance(encoding, Rotary) else None
        self._chosen = {name for name in self._names.values() if selection.has(name)}
        self.coverage = Coverage(model, self._chosen)
        self._runs: dict[str, list[Run]] = {}
        self._is_continuing = False
        self.ids = PendingIds()

    def owns(self, module: object) -> bool:
        """Whether a module belongs to the model; recomputation for a backward pass (checkpointing) is not recorded."""
        return id(module) in self._names and torch._C._current_graph_task_id() == -1

    def on_attention(self, module: nn.Module, call: Call, reference: ReferenceWeights) -> None:
        """Store a call: as more rows of a layer that it continues, or as a new layer."""
        name = self._names[id(module)]
        cross = is_cross(name) if call.cross is None else call.cross
        chosen = name in self._chosen
        some = self._select_heads(name, call) if chosen else call
        runs = self._runs.setdefault(name, [])
        run = self._find_run(runs, some if cross else call, cross=cross)
        self.trace.texts = self.ids.assign(
            self.trace.texts,
            call,
            layer=len(self.trace.layers),
            is_continuing=self._is_continuing,
            is_repeated=bool(runs),
        )
        if chosen and self._verify and (blocks := reference()):
            self.trace.errors[name] = max(max_abs_error(call, blocks), self.trace.errors.get(name, 0.0))
        if run is None:
            layer = self._start_layer(name, some, cross=cross) if chosen else None
            runs.append(Run(call.rows, call.columns, _last_key(call), layer))
            return
        layer = run.layer
        if layer is not None:
            self._keeping.add(layer, some, self._ids_of(layer) if self._keeping.statistics else None)
        has_all_heads = some is call and not cross
        run.advance(call, layer.last_key if isinstance(layer, Layer) and has_all_heads else _last_key(call))

    def on_handwritten(self, module: nn.Module | None) -> None:
        """Note a module that computes attention which is not recorded."""
        if module is not None and self.owns(module) and (name := self._names[id(module)]) in self._chosen:
            self.coverage.note_handwritten(name, module)

    def _find_run(self, runs: list[Run], call: Call, *, cross: bool) -> Run | None:
        """The first run of a layer that a call continues; a layer may run several times in one forward pass.

        Whether a sequence continues is known from self-attention alone, also of layers that are not stored.
        """
        if not cross:
            run = next((run for run in runs if run.is_continued_by(call)), None)
            self._is_continuing = run is not None
            return run
        if not self._is_continuing:
            return None
        behind = min((len(run.layer.rows) for run in runs if isinstance(run.layer, Layer)), default=0)
        return next((run for run in runs if run.layer is None or _can_append(run.layer, call, behind)), None)

    def _ids_of(self, layer: Layer | StatisticsLayer) -> Tensor | None:
        """The ids so far of the text that a layer reads."""
        return self.trace.ids_at(layer.name, list(self.trace.layers).index(layer.name))

    def _select_heads(self, name: str, call: Call) -> Call:
        heads = self._selection.heads_of(name, call.query.shape[1])
        return call if heads is None else with_heads(call, heads)

    def _start_layer(self, name: str, call: Call, *, cross: bool) -> Layer | StatisticsLayer:
        count = sum(other.partition("#")[0] == name for other in self.trace.layers)
        unique = f"{name}#{count + 1}" if count else name
        ids = self.trace.ids_at(name, len(self.trace.layers))
        layer = self._keeping.begin(unique, call, ids, cross=cross)
        self.trace.layers[unique] = layer
        return layer

    @contextmanager
    def checking(self, model: nn.Module) -> Iterator[None]:
        """Raise at the end of a forward pass in which attention ran that was not intercepted."""

        def after(*_: object) -> None:
            if not is_suppressed() and self in current_observers():
                self.check(finished=False)

        handle = model.register_forward_hook(after)
        try:
            yield
        finally:
            handle.remove()

    def check(self, *, finished: bool) -> None:
        """Raise UnsupportedError if attention was not intercepted; when `finished`, also if there was none at all."""
        self.trace.without_softmax = tuple(self.coverage.without_softmax)
        self.coverage.check({layer.partition("#")[0] for layer in self.trace.layers}, finished=finished)


@cache
def is_cross(name: str) -> bool:
    """Whether the last parts of a module name say that it is cross-attention.

    >>> is_cross("model.decoder.layers.0.encoder_attn"), is_cross("cross_encoder.layers.0.attention")
    (True, False)
    """
    return bool(CROSS.search(".".join(name.split(".")[-2:])))


def _last_key(call: Call) -> Tensor:
    """A copy of the last key, (batch, key heads, 1, dim); without keys, none."""
    return call.key[:, :, -1:].detach().clone()


def _can_append(layer: Layer | StatisticsLayer, call: Call, behind: int) -> bool:
    """Whether a cross-attention layer is the next one that a call extends."""
    return layer.has_same_keys(call) and (isinstance(layer, StatisticsLayer) or len(layer.rows) == behind)
