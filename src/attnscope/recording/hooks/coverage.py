"""Which attention layers a model has, which of them ran, and whether each was seen.

In: a model, and the names of layers that were seen. Out: an error that names those that ran unseen, and the names of
layers that mix tokens without a softmax. Does not know: how layers are seen. Memory: O(modules).

PyTorch has no mark for attention, so names of classes decide: a class whose name says attention, and that has no such
class inside, is a layer. So is a module that was observed to weight values by a softmax, whatever its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from attnscope.errors import UnsupportedError

ATTENTION = re.compile(r"Attention|Attn")
WITHOUT_SOFTMAX = re.compile(
    r"Mamba|DeltaNet|DeltaAttention|LightningAttention|LinearAttention|ShortConv|Recurrent|Rwkv|RWKV|Retention|Hyena"
    r"|SSM|Mixer$|Gated\w*Conv|xLSTM|mLSTM|sLSTM"
)
BESIDE = re.compile(
    r"Norm|Embed|Rotary|Mask|Dropout|Output|Adapter|Pool|Config|Linear$|Gate|Channel|Spatial|Projection"
)
"""Classes that only serve an attention: BertSelfOutput, AttentionMask, ..."""


class Coverage:
    """The attention layers of a model that ran while it was recorded."""

    def __init__(self, model: nn.Module, chosen: Iterable[str]) -> None:
        self._kind = type(model).__name__
        chosen = set(chosen)
        mixing = {
            name: module for name, module in model.named_modules() if WITHOUT_SOFTMAX.search(type(module).__name__)
        }
        self._mixing = {name: module for name, module in mixing.items() if not _inside(name, mixing)}
        named = {
            name: module
            for name, module in model.named_modules()
            if name and is_attention(module)
            if name not in self._mixing and not _inside(name, self._mixing)
        }
        innermost = {
            name: module for name, module in named.items() if not any(_inside(other, [name]) for other in named)
        }
        self._layers = {name: module for name, module in innermost.items() if name in chosen}
        self._ran: dict[str, str] = {}
        self._observed: dict[str, str] = {}
        self.without_softmax: list[str] = []

    @contextmanager
    def track(self, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Note which layers run while `is_wanted` returns True."""

        def note(module: nn.Module, name: str) -> None:
            if is_wanted():
                self._ran[name] = type(module).__name__

        def note_mixing(name: str) -> None:
            if is_wanted() and name not in self.without_softmax:
                self.without_softmax.append(name)

        handles = [
            module.register_forward_pre_hook(lambda module, _, name=name: note(module, name))
            for name, module in self._layers.items()
        ]
        handles += [
            module.register_forward_pre_hook(lambda _, __, name=name: note_mixing(name))
            for name, module in self._mixing.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def note_unseen(self, name: str, module: nn.Module) -> None:
        """Note a module that ran attention of its own, unless it is known to mix tokens in another way."""
        if name not in self._mixing and not _inside(name, self._mixing):
            self._observed[name] = type(module).__name__

    def unseen(self, seen: Collection[str]) -> dict[str, str]:
        """The layers that ran without being seen, with the names of their classes."""
        outside = {name: kind for name, kind in self._ran.items() if not any(_inside(one, [name]) for one in seen)}
        return {
            name: kind
            for name, kind in (outside | self._observed).items()
            if name not in seen and not _inside(name, seen)
        }

    def begin_again(self) -> None:
        """Forget which layers ran."""
        self._ran.clear()
        self._observed.clear()

    def refuse_unseen(self, seen: Collection[str], *, finished: bool) -> None:
        """Raise UnsupportedError if a layer ran and its attention was not seen, or in the end if there was none."""
        unseen = self.unseen(seen)
        if not unseen and (seen or self.without_softmax or not finished):
            return
        total = len(self._ran.keys() | self._observed.keys())
        count = total - len(unseen)
        if not unseen:
            raise UnsupportedError(
                f"record: no attention was seen in {self._kind}. Call the model inside the with block, in the same "
                "thread. FlexAttention, scripted models and a softmax written by hand are not seen: use "
                "F.scaled_dot_product_attention, or make a trace of the weights with Trace.from_attentions"
            )
        named = ", ".join(f"{name or 'the model itself'} ({kind})" for name, kind in list(unseen.items())[:3])
        more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""
        raise UnsupportedError(
            f"record: {count} of {total} attention layers of {self._kind} were seen. Not seen: {named}{more}, which "
            "compute attention by code of their own. For these, run the model with attn_implementation='eager' and "
            "output_attentions=True, and make a trace with Trace.from_attentions(outputs.attentions); or choose other "
            "layers with layers="
        )


def is_attention(module: nn.Module) -> bool:
    """Whether the class name of a module contains the word attention."""
    kind = type(module).__name__
    return bool(ATTENTION.search(kind)) and not BESIDE.search(kind)


def is_without_softmax(module: nn.Module) -> bool:
    """Whether the class name of a module is that of a token mixer without softmax."""
    return bool(WITHOUT_SOFTMAX.search(type(module).__name__))


def _inside(name: str, others: Iterable[str]) -> bool:
    """Whether a module is a part of one of these."""
    return any(name != other and name.startswith(f"{other}.") for other in others)
