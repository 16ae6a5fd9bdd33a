"""Record the token ids that a model is called with, by forward hooks.

In: a model. Out: ids for each submodule that reads its own text (an encoder and a decoder read two). They are assigned
when a layer runs, because its call shows whether they continue a text. Ambiguous ids are left out, with a warning.
Does not know: tokenizers. Memory: O(n).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.errors import UnsupportedError
from attnscope.models import Decoder, Encoder, Seq2Seq
from attnscope.recording.call import Call, refuse_meta
from attnscope.recording.hooks.coverage import is_attention
from attnscope.recording.hooks.observers import Observer, current_observers
from attnscope.recording.token_texts import INTEGERS, Texts


class ObservedIds(NamedTuple):
    """The ids of a submodule, the module they were passed to, and how likely they are tokens."""

    part: str
    ids: Tensor
    by: int
    rank: tuple[bool, int]
    batch_first: bool


@contextmanager
def observe_input_ids(model: nn.Module, observer: Observer, note: Callable[[ObservedIds], None]) -> Iterator[None]:
    """Call `note` with the ids of each submodule while the model runs for this observer."""

    def hook(part: str, module: nn.Module, batch_first: bool) -> Callable:
        name = "input" if isinstance(module, nn.Embedding) else "input_ids"
        parameters = inspect.signature(module.forward).parameters.values()
        positional = [one.name for one in parameters if one.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]

        def before(_: nn.Module, args: tuple, kwargs: dict[str, Any] | None = None) -> None:
            """Torch leaves out `kwargs` in other threads, while this one adds or removes the hook."""
            ids = None if kwargs is None else kwargs.get(name)
            if name in positional[: len(args)]:
                ids = args[positional.index(name)]
            if not isinstance(ids, Tensor) or ids.dtype not in INTEGERS or ids.dim() not in (1, 2) or not ids.numel():
                return
            refuse_meta(ids)
            if observer in current_observers():
                rows = ids.detach().reshape(-1, ids.shape[-1]).clone()
                size = module.num_embeddings if isinstance(module, nn.Embedding) else 0
                note(ObservedIds(part, rows, id(module), (not _are_positions(rows), size), batch_first))

        return before

    handles = [
        module.register_forward_pre_hook(hook(part, module, batch_first), with_kwargs=True)
        for part, module, batch_first in _parts_with_ids(model)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _parts_with_ids(model: nn.Module) -> list[tuple[str, nn.Module, bool]]:
    """The name of each submodule that reads ids, the module to hook for it, and whether its ids are batch-first.

    These are modules with attention whose forward takes `input_ids`, or else all embeddings. Models of AttnScope are
    hooked at their token embedding, because `features`, `encode` and `decode` do not pass through forward.
    """
    modules = list(model.named_modules())
    own = {name: module for name, module in modules if isinstance(module, Decoder | Encoder | Seq2Seq)}
    parts: list[tuple[str, nn.Module, bool]] = [(name, module.embedding, True) for name, module in own.items()]
    named = [
        (name, module, True)
        for name, module in modules
        if name not in own
        and "input_ids" in inspect.signature(module.forward).parameters
        and any(map(is_attention, module.modules()))
    ]
    if named:
        return parts + named
    inside_own = {id(inner) for module in own.values() for inner in module.modules()}
    others = [each for each in modules if isinstance(each[1], nn.Embedding) and id(each[1]) not in inside_own]
    return parts + [(name.rpartition(".")[0], module, False) for name, module in others]


def _are_positions(ids: Tensor) -> bool:
    """Whether ids are consecutive numbers, and so rather positions than tokens."""
    return ids.shape[1] > 1 and bool((ids.diff(dim=1) == 1).all())


class PendingIds:
    """Input ids that wait for the layer that they are assigned to."""

    def __init__(self) -> None:
        self._noted: dict[str, ObservedIds] = {}
        self._ambiguous: set[str] = set()
        self._left_out: set[str] = set()
        self._chosen: dict[str, int] = {}
        self._is_transposed: dict[int, bool] = {}  # for each embedding whose ids were not square

    def note(self, new: ObservedIds) -> None:
        """Add the ids of a submodule; if a module around it has the same ids, they replace those."""
        if self._chosen.get(new.part, new.by) != new.by:
            return
        for part, old in list(self._noted.items()):
            if _contains(part, new.part) and torch.equal(old.ids, new.ids):
                del self._noted[part]
        old = self._noted.get(new.part)
        if old is not None and old.by == new.by and not torch.equal(old.ids, new.ids):
            self._ambiguous.add(new.part)  # two texts before any layer: unknown which layer reads which
        if old is None or new.rank > old.rank or old.by == new.by:
            self._noted[new.part] = new

    def assign(
        self, texts: list[Texts], call: Call, *, layer: int, is_continuing: bool, is_repeated: bool
    ) -> list[Texts]:
        """The texts with the ids that were noted since the last layer.

        Args:
            texts: The texts so far.
            call: The attention call that reads the ids.
            layer: The index of its layer.
            is_continuing: Whether the call continues a text, as a decoding step does.
            is_repeated: Whether the layer has run before.
        """
        if not self._noted:
            return texts
        result = list(texts)
        for part, noted in self._noted.items():
            ids = self._ids_of(noted, call)
            if ids is None:
                continue
            self._chosen[part] = noted.by
            places = [at for at, text in enumerate(result) if text.part == part]
            before = result[places[-1]] if places else None
            if before is not None and is_continuing:
                result[places[-1]] = before._replace(ids=torch.cat([before.ids, ids], dim=1))
            elif before is None or not torch.equal(before.ids, ids):
                if before is not None and is_repeated:
                    raise _second_text(before, call)
                result.append(Texts(part, ids, since=layer))
        self._noted, self._ambiguous = {}, set()
        return result

    def _ids_of(self, noted: ObservedIds, call: Call) -> Tensor | None:
        """Ids as (batch, positions); None, with one warning per submodule, if that is ambiguous."""
        if noted.part in self._left_out:
            return None
        if noted.part in self._ambiguous:
            return self._leave_out(noted.part, "its embedding was called twice before the first attention layer")
        if noted.batch_first or noted.ids.numel() == 1:
            return noted.ids
        batch, _, queries, _ = call.query.shape
        shape = tuple(noted.ids.shape)
        if shape != (batch, batch) or batch != queries:
            self._is_transposed[noted.by] = shape == (queries, batch)
        is_transposed = self._is_transposed.get(noted.by)
        if is_transposed is None:
            reason = f"{batch} sequences of {batch} tokens may be (batch, positions) or (positions, batch)"
            return self._leave_out(noted.part, reason)
        return noted.ids.T.contiguous() if is_transposed else noted.ids

    def _leave_out(self, part: str, reason: str) -> None:
        self._left_out.add(part)
        warnings.warn(
            f"record: the trace has no tokens{f' of {part}' if part else ''}, because {reason}; to avoid this, name "
            "the argument of the model's forward input_ids, with the shape (batch, positions)",
            stacklevel=2,
        )


def _second_text(before: Texts, call: Call) -> UnsupportedError:
    """The error for ids that do not continue the recorded ones; a cropped KV cache has its own message."""
    if 0 < call.row < before.ids.shape[1]:
        return UnsupportedError(
            f"record: the KV cache was cropped to {call.row} of {before.ids.shape[1]} tokens, as speculative decoding "
            "does with rejected tokens (prompt_lookup_num_tokens, assistant_model); generate without it, or record "
            "one forward pass over the finished text"
        )
    return UnsupportedError(
        "record: a trace holds one text, and the model was called with a second one; use one record per text. To "
        "record generation, leave use_cache on"
    )


def _contains(part: str, other: str) -> bool:
    return part != other and (not part or other.startswith(f"{part}."))
