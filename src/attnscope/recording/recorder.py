"""`record`: a context manager that watches a model and fills a `Trace`.

In: any PyTorch model. Out: the trace, as the model runs inside the with block, in this thread.
Does not know: how attention is seen (`watch`), what is kept of it (`layers`).
Memory: that of the trace. The model is left as it was, also after an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.attention import attend
from attnscope.errors import SettingError, UnsupportedError
from attnscope.recording.call import Call, Copies, follows, owned, same_numbers, with_heads
from attnscope.recording.heap import Heap
from attnscope.recording.layers.disk import Spill, spill_to
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.layers.summed import SummedLayer
from attnscope.recording.pairs import LatestPairs
from attnscope.recording.selection import Heads, Selection, Wanted
from attnscope.recording.trace import Trace
from attnscope.recording.watch.coverage import Coverage
from attnscope.recording.watch.eager import eagerly, original_of
from attnscope.recording.watch.evidence import Evidence, from_kernel, largest_error
from attnscope.recording.watch.ids import PendingIds, watching_ids
from attnscope.recording.watch.listeners import already_told, calling_module, is_told, listeners, listening
from attnscope.recording.watch.torch_calls import arguments_of, reader_of
from attnscope.recording.watch.transformers_calls import watched

CROSS = re.compile(r"cross|encoder_attn|encdec|multihead_attn|src_attn|attn2", re.IGNORECASE)
"""How cross-attention is called by those who call it something."""


@contextmanager
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
    """Record what a model attends to while it runs inside the with block, in this thread.

    `layers` are numbers or names (* stands for anything), `heads` a list for all layers or one for each; without them,
    everything is recorded. `dtype` stores queries and keys in another one: bfloat16 takes half the memory. With
    keep="statistics", each layer becomes a `Summary` as it runs and nothing else is held. `values` keeps the values,
    too, for `AttentionMatrix.weighted`. `spill` is a folder to hold everything in instead of memory. `verify` compares
    blocks of each layer with the model's own code; the largest differences are in `trace.errors`. `length` is that of
    the whole text, if the model reads it in pieces and keeps statistics.

    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> text = torch.randn(1, 5, 8)
    >>> with record(nn.ModuleDict({"first": attention})) as trace:
    ...     _ = attention(text, text, text)
    >>> trace["first"].shape
    torch.Size([1, 2, 5, 5])
    """
    if not isinstance(model, nn.Module):
        raise SettingError(f"record: wants a torch.nn.Module, got {type(model).__name__}")
    if keep not in ("matrix", "statistics"):
        raise SettingError(f"record: keep={keep!r}; it is 'matrix' or 'statistics'")
    if keep == "statistics" and (dtype is not None or values or spill is not None):
        raise SettingError(
            "record: keep='statistics' holds no queries, keys or values; leave out dtype, values and spill"
        )
    eager, model = eagerly(model, "record"), original_of(model)
    keeping = Keeping(dtype, values, keep == "statistics", None if spill is None else spill_to(spill), length)
    recorder = Recorder(model, tokenizer, Selection(layers, heads), keeping, verify=verify)
    with ExitStack() as stack:
        stack.enter_context(eager)
        stack.enter_context(watched(model))
        stack.enter_context(recorder.coverage.watching(lambda: recorder in listeners()))
        stack.enter_context(watching_ids(model, recorder, recorder.ids.note))
        stack.enter_context(recorder.checking(model))
        stack.enter_context(listening(recorder))
        stack.enter_context(_Watch(recorder))
        yield recorder.trace
    recorder.check(finished=True)


@dataclass(frozen=True)
class Keeping:
    """What is kept of a call."""

    dtype: torch.dtype | None
    values: bool
    statistics: bool
    spill: Spill | None
    length: int | None
    copies: Copies = field(default_factory=Copies)
    heap: Heap = field(default_factory=Heap)
    pairs: LatestPairs = field(default_factory=LatestPairs)

    def begin(self, name: str, call: Call, ids: Tensor | None, *, cross: bool) -> Layer | SummedLayer:
        """A new layer from its first call, in a text with these ids."""
        if self.statistics:
            return SummedLayer(name, call, cross=cross, length=self.length, ids=ids, pairs=self.pairs)
        return Layer(name, self._owned(call), cross=cross, spill=self.spill)

    def add(self, layer: Layer | SummedLayer, call: Call, ids: Tensor | None) -> None:
        """More rows of a layer; `ids` are those of the text so far."""
        if isinstance(layer, SummedLayer):
            layer.append(call, ids)
        else:
            layer.append(self._owned(layer.news_of(call)))

    def _owned(self, call: Call) -> Call:
        kept = self.copies.of(owned(call, self.dtype, values=self.values))
        self.heap.after(kept.query.nbytes)
        return kept


@dataclass
class Run:
    """A layer as far as it has come: where its last call ended, also if nothing is kept of it."""

    rows: range
    columns: range
    last_key: Tensor
    layer: Layer | SummedLayer | None

    def goes_on_with(self, call: Call) -> bool:
        """Whether a call of self-attention follows; raises where it does, but what came before is not the same."""
        if not follows(self.rows, self.columns, call):
            return False
        past = call.row - call.column
        if past and not same_numbers(call.key[:, :, past - 1], self.last_key):
            raise UnsupportedError(
                "record: the keys of the step before are no longer those in the cache: beam search trades the places "
                "of texts, and some caches are rewritten; generate with one beam, or record a pass over the finished "
                "text"
            )
        return True

    def come_to(self, call: Call) -> None:
        """Take note of where a call ended."""
        self.rows, self.columns, self.last_key = call.rows, call.columns, call.key[:, :, -1:].detach()[:, :, 0].clone()


class Recorder:
    """Hears of calls, and decides what becomes of them."""

    def __init__(
        self, model: nn.Module, tokenizer: Any, selection: Selection, keeping: Keeping, *, verify: bool
    ) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        selection.check(self._names.values())
        self._selection, self._keeping, self._verify = selection, keeping, verify
        self.trace = Trace(type(model).__name__, tokenizer)
        self.coverage = Coverage(model, [name for name in self._names.values() if selection.has(name)])
        self._runs: dict[str, list[Run]] = {}
        self._going_on = False
        self.ids = PendingIds()

    def wants(self, module: object) -> bool:
        """Whether something is a module of the model; one that runs again for a backward pass has been heard of."""
        return id(module) in self._names and torch._C._current_graph_task_id() == -1

    def hear(self, module: nn.Module, call: Call, evidence: Evidence) -> None:
        """Keep a call: as rows of a layer that it goes on with, or as a layer of its own."""
        name = self._names[id(module)]
        cross = is_cross(name) if call.cross is None else call.cross
        chosen = self._selection.has(name)
        some = self._with_chosen_heads(name, call) if chosen else call
        runs = self._runs.setdefault(name, [])
        run = self._continued(runs, some if cross else call, cross=cross)
        self.trace.texts = self.ids.committed(
            self.trace.texts, call, layer=len(self.trace.layers), going_on=self._going_on, again=bool(runs)
        )
        if chosen and self._verify and (blocks := evidence()):
            self.trace.errors[name] = max(largest_error(call, blocks), self.trace.errors.get(name, 0.0))
        if run is None:
            layer = self._begun(name, some, cross=cross) if chosen else None
            run = Run(call.rows, call.columns, call.key[:, :, -1].detach().clone(), layer)
            runs.append(run)
        else:
            if run.layer is not None:
                place = list(self.trace.layers).index(run.layer.name)
                self._keeping.add(run.layer, some, self.trace.ids_at(name, place))
            run.come_to(call)

    def _continued(self, runs: list[Run], call: Call, *, cross: bool) -> Run | None:
        """The first run of a layer that a call goes on with; a layer may run several times in one pass.

        Whether a text goes on is known from self-attention alone, also of layers that are not kept.
        """
        if not cross:
            run = next((run for run in runs if run.goes_on_with(call)), None)
            self._going_on = run is not None
            return run
        if not self._going_on:
            return None
        behind = min((len(run.layer.rows) for run in runs if isinstance(run.layer, Layer)), default=0)
        return next((run for run in runs if run.layer is None or _can_take(run.layer, call, behind)), None)

    def _with_chosen_heads(self, name: str, call: Call) -> Call:
        heads = self._selection.heads_of(name, call.query.shape[1])
        return call if heads is None else with_heads(call, heads)

    def _begun(self, name: str, call: Call, *, cross: bool) -> Layer | SummedLayer:
        count = sum(other.partition("#")[0] == name for other in self.trace.layers)
        unique = f"{name}#{count + 1}" if count else name
        ids = self.trace.ids_at(name, len(self.trace.layers))
        layer = self._keeping.begin(unique, call, ids, cross=cross)
        self.trace.layers[unique] = layer
        return layer

    @contextmanager
    def checking(self, model: nn.Module) -> Iterator[None]:
        """Refuse as soon as a pass has gone through layers that were not seen."""

        def after(*_: object) -> None:
            if not is_told() and self in listeners():
                self.check(finished=False)

        handle = model.register_forward_hook(after)
        try:
            yield
        finally:
            handle.remove()

    def check(self, *, finished: bool) -> None:
        """Raise UnsupportedError if attention ran that was not seen, and in the end, if there was none at all."""
        self.trace.without_softmax = tuple(self.coverage.without_softmax)
        self.coverage.refuse_unseen({layer.partition("#")[0] for layer in self.trace.layers}, finished=finished)


class _Watch(TorchFunctionMode):
    """Sees the attention functions of PyTorch, and AttnScope's, as they are called in this thread."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        reader = reader_of(function)
        if reader is None or is_told() or self._recorder not in listeners():  # a task of asyncio shares the mode
            return function(*args, **kwargs)
        module = calling_module(self._recorder)
        if module is None:
            return function(*args, **kwargs)
        arguments = arguments_of(function, args, kwargs)
        call = reader(**arguments)
        if function is attend and not arguments["return_lse"]:  # normalisers come at no cost
            result, lse = attend(**{**arguments, "return_lse": True})
            call = replace(call, lse=lse.reshape(call.query.shape[:3]))
        else:
            result = function(*args, **kwargs)
        with already_told():
            self._recorder.hear(module, call, lambda: from_kernel(function, arguments))
        return result


def is_cross(name: str) -> bool:
    """Whether the last words of a name say that its keys come from elsewhere.

    >>> is_cross("model.decoder.layers.0.encoder_attn"), is_cross("cross_encoder.layers.0.attention")
    (True, False)
    """
    return bool(CROSS.search(".".join(name.split(".")[-2:])))


def _can_take(layer: Layer | SummedLayer, call: Call, behind: int) -> bool:
    """Whether a layer of cross-attention is the next in turn for a call."""
    return layer.sees_the_same(call) and (isinstance(layer, SummedLayer) or len(layer.rows) == behind)
