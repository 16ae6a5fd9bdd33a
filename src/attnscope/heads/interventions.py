"""`ablate` and `patch`: run a model with some head outputs replaced.

Head outputs are replaced between the attention function and the output projection. This is the last place where the
output of one head is separate. In: a model and a selection of heads. Out: the same model, changed inside the with block
and in this thread, and restored afterwards, also after an error.
Does not know: losses, scores. Memory: a copy of the head outputs of each changed layer.
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
from attnscope.recording.call import Call
from attnscope.recording.hooks.coverage import Coverage
from attnscope.recording.hooks.eager import eagerly, uncompiled
from attnscope.recording.hooks.interventions import intercept_heads
from attnscope.recording.hooks.observers import current_interventions, is_suppressed
from attnscope.recording.layers.recorded import Layer
from attnscope.recording.recorder import is_cross
from attnscope.recording.selection import Selection, Wanted, heads_by_layer, matches
from attnscope.recording.single_use import single_use

HeadIndices = int | Sequence[int]
HeadSelection = Mapping[int, HeadIndices] | Mapping[str, HeadIndices] | Mapping[Wanted, HeadIndices] | HeadTable
"""Heads by layer, which is a number or a name: {3: [5]}, {"decoder.layers.0.encoder_attn": [1, 2]}; or a table."""

How = Literal["zero", "mean"] | float


class HeadOutput(NamedTuple):
    """The output of some heads of a layer in one forward pass, before the output projection."""

    layer: str
    heads: list[int]
    values: Tensor
    """Shape (batch, heads, queries, head_dim)."""
    num_keys: int
    read_call: Callable[[], Call]
    """Returns the attention call of all heads that computed the output."""
    call: int
    """How often the layer has been called in this pass, starting at 1."""


Replacement = Callable[[HeadOutput], Tensor]
"""Returns the values to use instead, of the same shape."""


@single_use
def ablate(model: nn.Module, heads: HeadSelection, how: How = "zero") -> Iterator[None]:
    """Ablate heads of a model inside the with block, in this thread.

    A model that is trained with gradient checkpointing needs its backward pass inside the block, too.

    Args:
        model: Any model that `record` supports.
        heads: Heads by layer number or layer name, as in `record`, or a `HeadTable`.
        how: "zero" replaces head outputs by zero. "mean" replaces them by their mean over all tokens of the batch,
            padding included. A number scales them: 0.5 halves them, 1.0 changes nothing.

    Raises:
        SettingError: `heads` or `how` is invalid.
        UnsupportedError: The attention of a selected layer was not called, or cannot be intercepted.

    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> text = torch.randn(1, 5, 8)
    >>> with torch.no_grad(), ablate(nn.ModuleDict({"first": attention}), {"first": [0, 1]}):
    ...     output, _ = attention(text, text, text)
    >>> torch.equal(output, attention.out_proj.bias.expand(1, 5, 8))
    True
    """
    if isinstance(how, int | float) and not isinstance(how, bool):
        replacement: Replacement = lambda output: output.values * how  # noqa: E731
    elif how in ("zero", "mean"):
        replacement = _zero if how == "zero" else _mean
    else:
        raise SettingError(f"ablate: expected how='zero', 'mean' or a number that scales the outputs, got {how!r}")
    with replace_head_outputs("ablate", model, heads, replacement):
        yield


@single_use
def patch(
    model: nn.Module, heads: HeadSelection, donor: Trace, *, positions: int | Sequence[int] | slice = slice(None)
) -> Iterator[None]:
    """Patch head outputs with those of another run (activation patching), inside the with block and in this thread.

    Both texts need the same number of tokens, and the patched model has to read its text in one forward pass.

    Args:
        model: Any model that `record` supports.
        heads: Heads by layer number or layer name, or a `HeadTable`.
        donor: A trace of the other run, recorded with `values=True`.
        positions: The token positions to patch; all of them by default.

    Raises:
        SettingError: The donor lacks a layer, a head or the values, or its shape differs.
        UnsupportedError: The attention of a selected layer was not called, or cannot be intercepted.

    >>> from attnscope.recording import read
    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> model = Decoder(config).eval()
    >>> donor = read(model, list(range(20, 32)), values=True, progress=False)
    >>> with torch.no_grad(), patch(model, {0: [1]}, donor):  # layer 0, head 1
    ...     output = model(torch.arange(12)[None])
    """
    where = (
        positions if isinstance(positions, slice) else [positions] if isinstance(positions, int) else list(positions)
    )

    def replacement(output: HeadOutput) -> Tensor:
        is_repeated = f"{output.layer}#2" in donor  # the layer is called several times per pass
        name = f"{output.layer}#{output.call}" if is_repeated and output.call > 1 else output.layer
        donated = recorded_head_outputs(donor, name, output.heads)
        if donated.shape != output.values.shape:
            raise SettingError(
                f"patch: {output.layer} has head outputs of shape {tuple(donated.shape)} (batch, heads, queries, "
                f"head_dim) in the donor and {tuple(output.values.shape)} in this pass; use texts with the same number "
                "of tokens, and read each in one pass"
            )
        tokens = output.values.shape[2]
        if not isinstance(where, slice) and any(not -tokens <= position < tokens for position in where):
            raise SettingError(f"patch: expected positions below {tokens}, the number of tokens, got {where}")
        patched = output.values.clone()
        patched[:, :, where] = donated[:, :, where].to(patched)
        return patched

    with replace_head_outputs("patch", model, heads, replacement):
        yield


def recorded_head_outputs(trace: Trace, name: str, heads: Sequence[int]) -> Tensor:
    """Compute head outputs (batch, heads, queries, head_dim) of a recorded layer: attention weights times values."""
    if name not in trace:
        raise SettingError(f"patch: {name} is not among the {len(trace)} layers of the donor; record it there, too")
    layer = trace.layer(name)
    if not isinstance(layer, Layer) or (call := layer.merge_calls()).value is None:
        raise SettingError(f"patch: the donor has no values for {name}; record it with values=True and keep='matrix'")
    missing = [head for head in heads if head not in layer.heads]
    if missing:
        raise SettingError(f"patch: head {missing[0]} of {name} is not in the donor, which has {list(layer.heads)}")
    output = attend(call.query, call.key, call.value, mask=call.mask, scale=call.scale, score_mod=call.score_mod)
    return output[:, [layer.heads.index(head) for head in heads]]


def _zero(output: HeadOutput) -> Tensor:
    return torch.zeros_like(output.values)


def _mean(output: HeadOutput) -> Tensor:
    queries = output.values.shape[2]
    if queries == 1 or (output.num_keys > queries and not is_cross(output.layer)):
        raise SettingError(
            f"ablate: how='mean' needs the whole text in one pass, but {output.layer} got {queries} of "
            f"{output.num_keys} tokens; run without a KV cache, or use how='zero'"
        )
    return output.values.mean(dim=(0, 2), keepdim=True).expand_as(output.values)


@contextmanager
def replace_head_outputs(
    caller: str, model: nn.Module, heads: HeadSelection, replacement: Replacement
) -> Iterator[None]:
    """Replace head outputs inside the with block; an empty selection touches nothing. `caller` is named in errors."""
    if not isinstance(model, nn.Module):
        raise SettingError(f"{caller}: expected a torch.nn.Module, got {type(model).__name__}")
    selected = _select(caller, heads)
    if not selected:
        yield
        return
    eager, model = eagerly(model, caller), uncompiled(model)
    intervention = _Intervention(caller, model, selected, replacement)
    with ExitStack() as stack:
        stack.enter_context(eager)
        stack.enter_context(model.register_forward_pre_hook(intervention.begin_pass))
        stack.enter_context(model.register_forward_hook(intervention.end_pass))
        stack.enter_context(intervention.coverage.track(intervention.is_active))
        stack.enter_context(intercept_heads(model, intervention))
        yield
    intervention.finish()


def _select(caller: str, heads: HeadSelection) -> dict[Wanted, list[int]]:
    """Return the heads of each layer as lists, without layers that have none."""
    given = heads.heads_by_layer if isinstance(heads, HeadTable) else heads
    if not isinstance(given, Mapping):
        raise SettingError(f"{caller}: expected heads by layer, such as {{3: [5]}}, or a HeadTable, got {given!r}")
    lists = {layer: [some] if isinstance(some, int) else list(some) for layer, some in given.items()}
    return {layer: some for layer, some in lists.items() if some}


class _Intervention:
    """Replaces the outputs of selected heads, and checks that every selected layer was reached."""

    def __init__(self, caller: str, model: nn.Module, heads: dict[Wanted, list[int]], replacement: Replacement) -> None:
        self._caller, self._replacement = caller, replacement
        self._names = {id(module): name for name, module in model.named_modules()}
        self._heads = heads = heads_by_layer(heads, self._names.values())
        self._selection = Selection(list(heads), heads, caller=caller)
        self._selection.check(self._names.values())
        self.coverage = Coverage(model, [name for name in self._names.values() if self._selection.has(name)])
        self._calls: Counter[str] = Counter()  # per layer, in this pass
        self._reached: dict[Wanted, str] = {}

    def is_active(self) -> bool:
        """Whether this intervention applies to the current thread and call."""
        return not is_suppressed() and self in current_interventions()

    def owns(self, module: nn.Module) -> bool:
        """Whether a module belongs to the model."""
        return id(module) in self._names

    def targets(self, module: nn.Module) -> bool:
        """Whether heads of this module are replaced."""
        return self._selection.has(self._names[id(module)])

    def apply(self, module: nn.Module, heads: Tensor, keys: int, read_call: Callable[[], Call]) -> Tensor:
        """Replace the selected heads in the outputs (batch, heads, queries, head_dim) of a module."""
        name = self._names[id(module)]
        selected = self._selection.heads_of(name, heads.shape[1])
        assert selected is not None
        self._count_call(name)
        result = heads.clone()
        output = HeadOutput(name, selected, heads[:, selected], keys, read_call, self._calls[name])
        result[:, selected] = self._replacement(output)
        return result

    def _count_call(self, name: str) -> None:
        self._calls[name] += 1
        for layer in self._heads:
            if matches(name, layer):
                first = self._reached.setdefault(layer, name)
                if isinstance(layer, int) and first != name:
                    raise SettingError(f"{self._caller}: layer {layer} is ambiguous: {first} or {name}; use a name")

    def begin_pass(self, *_: object) -> None:
        """Reset the call counts."""
        if self.is_active():
            self._calls.clear()
            self.coverage.reset()

    def end_pass(self, *_: object) -> None:
        """Raise if a selected layer ran in this pass without being intercepted."""
        if self.is_active() and (missed := self.coverage.missed_layers(self._calls)):
            raise self._unreached_error(next(iter(missed)))

    def finish(self) -> None:
        """Raise if a selected layer was never reached inside the block."""
        for layer in [*self.coverage.missed_layers(self._calls), *self._heads]:
            if layer not in self._calls and layer not in self._reached:
                raise self._unreached_error(layer)

    def _unreached_error(self, layer: Wanted) -> UnsupportedError:
        return UnsupportedError(
            f"{self._caller}: the attention of layer {layer!r} was not intercepted, so its heads are unchanged. "
            "Run the model inside the with block and in the same thread. If the layer has its own attention code, load "
            "the model with attn_implementation='sdpa' or 'eager'"
        )
