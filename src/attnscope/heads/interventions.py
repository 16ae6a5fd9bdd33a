"""`ablate` and `patch`: a model with some of its heads silenced, or saying what they said in another run.

Heads are changed right after the attention function and before the output projection mixes them, which is the only
place where a head is still alone. In: a model and its heads. Out: the same model, changed inside the with block, in
this thread, and as it was afterwards, also after an error.
Does not know: losses, scores. Memory: a copy of what the heads of a changed layer say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.attention import attend
from attnscope.errors import SettingError, UnsupportedError
from attnscope.heads.table import HeadTable
from attnscope.recording import Trace
from attnscope.recording.hooks.coverage import Coverage
from attnscope.recording.hooks.eager import eagerly, uncompiled
from attnscope.recording.hooks.interventions import intercept_heads
from attnscope.recording.hooks.observers import current_interventions, is_suppressed
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.recorder import is_cross
from attnscope.recording.selection import Selection, Wanted, heads_by_layer, matches

Some = int | Sequence[int]
Heads = Mapping[int, Some] | Mapping[str, Some] | Mapping[Wanted, Some] | HeadTable
"""Heads of layers, which are numbers or names: {3: [5]}, {"decoder.layers.0.encoder_attn": [1, 2]}; or a table."""

How = Literal["zero", "mean"] | float


class Said(NamedTuple):
    """What some heads of a layer say in a pass, (batch, heads, query, dim), to so many keys.

    `call` counts how often the layer has been called in this pass, from 1 on.
    """

    layer: str
    heads: list[int]
    rows: Tensor
    keys: int
    call: int


Replacement = Callable[[Said], Tensor]
"""What heads say instead, of the same shape."""


@contextmanager
def ablate(model: nn.Module, heads: Heads, how: How = "zero") -> Iterator[None]:
    """Run a model without some of its heads, inside the with block and in this thread.

    "zero" silences them, "mean" has each say at every token what it says on the average of the pass, and a number
    scales what they say: 0.5 halves it, 1.0 changes nothing. Layers are numbers or names, as in `record`. The mean is
    taken over all tokens of a batch, padding included. A model that is trained with checkpointing needs its backward
    pass inside the block, too.

    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> text = torch.randn(1, 5, 8)
    >>> with torch.no_grad(), ablate(nn.ModuleDict({"first": attention}), {"first": [0, 1]}):
    ...     output, _ = attention(text, text, text)
    >>> torch.equal(output, attention.out_proj.bias.expand(1, 5, 8))
    True
    """
    if isinstance(how, int | float) and not isinstance(how, bool):
        replacement: Replacement = lambda said: said.rows * how  # noqa: E731
    elif how in ("zero", "mean"):
        replacement = _nothing if how == "zero" else _mean
    else:
        raise SettingError(f"ablate: how={how!r}; it is 'zero', 'mean' or a number that scales what the heads say")
    with _intervention("ablate", model, heads, replacement):
        yield


@contextmanager
def patch(
    model: nn.Module, heads: Heads, donor: Trace, *, positions: int | Sequence[int] | slice = slice(None)
) -> Iterator[None]:
    """Run a model with heads that say what they said in another run, at all tokens or at some positions.

    `donor` is a trace of that run, recorded with `values=True`; both texts have the same number of tokens, and the
    changed pass reads them at once.
    """
    where = (
        positions if isinstance(positions, slice) else [positions] if isinstance(positions, int) else list(positions)
    )

    def replacement(said: Said) -> Tensor:
        again = f"{said.layer}#2" in donor  # a layer that is called several times a pass
        theirs = said_in(donor, f"{said.layer}#{said.call}" if again and said.call > 1 else said.layer, said.heads)
        if theirs.shape != said.rows.shape:
            raise SettingError(
                f"patch: {said.layer} said {tuple(theirs.shape)} (batch, heads, tokens, dim) in the donor and says "
                f"{tuple(said.rows.shape)} in this pass; give both the same number of tokens, read in one pass"
            )
        tokens = said.rows.shape[2]
        if not isinstance(where, slice) and any(not -tokens <= position < tokens for position in where):
            raise SettingError(f"patch: positions {where} were asked for in a text of {tokens} tokens")
        mixed = said.rows.clone()
        mixed[:, :, where] = theirs[:, :, where].to(mixed)
        return mixed

    with _intervention("patch", model, heads, replacement):
        yield


def said_in(trace: Trace, name: str, heads: Sequence[int]) -> Tensor:
    """What heads of a layer said in a recorded run, (batch, heads, query, dim): their weights times the values."""
    if name not in trace:
        raise SettingError(f"patch: {name} is not in the donor, which has {len(trace)} layers; record it there, too")
    layer = trace.layer(name)
    if not isinstance(layer, Layer) or (call := layer.joined()).value is None:
        raise SettingError(
            f"patch: the donor does not hold what the heads of {name} said; record it with values=True and "
            "keep='matrix'"
        )
    missing = [head for head in heads if head not in layer.heads]
    if missing:
        raise SettingError(
            f"patch: head {missing[0]} of {name} was not recorded in the donor, which has {list(layer.heads)} of it"
        )
    said = attend(call.query, call.key, call.value, mask=call.mask, scale=call.scale, score_mod=call.score_mod)
    return said[:, [layer.heads.index(head) for head in heads]]


def _nothing(said: Said) -> Tensor:
    return torch.zeros_like(said.rows)


def _mean(said: Said) -> Tensor:
    queries = said.rows.shape[2]
    if queries == 1 or (said.keys > queries and not is_cross(said.layer)):
        raise SettingError(
            f"ablate: the mean of what a head says is that over all tokens of one pass, and {said.layer} was given "
            f"{queries} of {said.keys} tokens; run the whole text at once, without a cache, or ablate with how='zero'"
        )
    return said.rows.mean(dim=(0, 2), keepdim=True).expand_as(said.rows)


@contextmanager
def _intervention(what: str, model: nn.Module, heads: Heads, replacement: Replacement) -> Iterator[None]:
    """Replace what heads say for a while; without any heads, nothing is touched."""
    if not isinstance(model, nn.Module):
        raise SettingError(f"{what}: wants a torch.nn.Module, got {type(model).__name__}")
    chosen = _chosen(what, heads)
    if not chosen:
        yield
        return
    eager, model = eagerly(model, what), uncompiled(model)
    intervention = _Intervention(what, model, chosen, replacement)
    with ExitStack() as stack:
        stack.enter_context(eager)
        stack.enter_context(model.register_forward_pre_hook(intervention.begin_pass))
        stack.enter_context(model.register_forward_hook(intervention.end_pass))
        stack.enter_context(intervention.coverage.track(intervention.is_here))
        stack.enter_context(intercept_heads(model, intervention))
        yield
    intervention.finish()


def _chosen(what: str, heads: Heads) -> dict[Wanted, list[int]]:
    """The heads of each layer as lists, layers without any left out."""
    given = heads.chosen if isinstance(heads, HeadTable) else heads
    if not isinstance(given, Mapping):
        raise SettingError(f"{what}: wants heads as {{3: [5]}}, by layer, or a table of them; got {given!r}")
    lists = {layer: [some] if isinstance(some, int) else list(some) for layer, some in given.items()}
    return {layer: some for layer, some in lists.items() if some}


class _Intervention:
    """Which heads of which modules are replaced, and whether all of them have been."""

    def __init__(self, what: str, model: nn.Module, heads: dict[Wanted, list[int]], replacement: Replacement) -> None:
        self._what, self._replacement = what, replacement
        self._names = {id(module): name for name, module in model.named_modules()}
        self._heads = heads = heads_by_layer(heads, self._names.values())
        self._selection = Selection(list(heads), heads, asked_by=what)
        self._selection.check(self._names.values())
        self.coverage = Coverage(model, [name for name in self._names.values() if self._selection.has(name)])
        self._calls: Counter[str] = Counter()  # of layers, since the pass began
        self._reached: dict[Wanted, str] = {}

    def is_here(self) -> bool:
        """Whether this thread is the one, and no inner computation."""
        return not is_suppressed() and self in current_interventions()

    def owns(self, module: nn.Module) -> bool:
        """Whether something is a module of the model."""
        return id(module) in self._names

    def targets(self, module: nn.Module) -> bool:
        """Whether heads of this module are replaced."""
        return self._selection.has(self._names[id(module)])

    def apply(self, module: nn.Module, heads: Tensor, keys: int) -> Tensor:
        """What heads (batch, head, query, dim) of a module say now."""
        name = self._names[id(module)]
        chosen = self._selection.heads_of(name, heads.shape[1])
        assert chosen is not None
        self._note(name)
        result = heads.clone()
        result[:, chosen] = self._replacement(Said(name, chosen, heads[:, chosen], keys, self._calls[name]))
        return result

    def _note(self, name: str) -> None:
        self._calls[name] += 1
        for layer in self._heads:
            if matches(name, layer):
                before = self._reached.setdefault(layer, name)
                if isinstance(layer, int) and before != name:
                    raise SettingError(f"{self._what}: layer {layer} may be {before} or {name}; say which by its name")

    def begin_pass(self, *_: object) -> None:
        """Count calls of layers anew."""
        if self.is_here():
            self._calls.clear()
            self.coverage.begin_again()

    def end_pass(self, *_: object) -> None:
        """Refuse the result of a pass in which a chosen layer ran and was not reached."""
        if self.is_here() and (unseen := self.coverage.unseen(self._calls)):
            raise self._unreached(next(iter(unseen)))

    def finish(self) -> None:
        """Refuse a block in which a chosen layer was never reached."""
        for layer in [*self.coverage.unseen(self._calls), *self._heads]:
            if layer not in self._calls and layer not in self._reached:
                raise self._unreached(layer)

    def _unreached(self, layer: Wanted) -> UnsupportedError:
        return UnsupportedError(
            f"{self._what}: the heads of layer {layer!r} were not reached, so that nothing has changed there. Run the "
            "model inside the with block, in the same thread; a layer that computes attention by code of its own can "
            "be reached after loading the model with attn_implementation='sdpa' or 'eager', if it has them"
        )
