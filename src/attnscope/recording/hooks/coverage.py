"""Which attention layers a model has, which of them ran, and which of these were intercepted.

In: a model, and the names of intercepted layers. Out: an error that names the layers that ran but were not intercepted,
and the names of layers that mix tokens without a softmax. Does not know: how calls are intercepted. Memory: O(modules).

PyTorch does not mark attention modules, so class names decide: a module is an attention layer if its class name
contains "Attention" or "Attn" and it contains no such module. So is a module that multiplied values by a softmax,
whatever its name.
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
HELPERS = re.compile(
    r"Norm|Embed|Rotary|Mask|Dropout|Output|Adapter|Pool|Config|Linear$|Gate|Channel|Spatial|Projection"
)
"""Classes that belong to attention but do not compute it: BertSelfOutput, AttentionMask, ..."""


class Coverage:
    """The attention layers of a model that ran while it was recorded.

    Args:
        model: The model.
        chosen: The names of the modules that count.
        caller: The function that is named in errors.
    """

    def __init__(self, model: nn.Module, chosen: Iterable[str], caller: str = "record") -> None:
        self._caller = caller
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
        self._handwritten: dict[str, str] = {}
        self.without_softmax: list[str] = []

    @contextmanager
    def track(self, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Collect the layers that run while `is_wanted` returns True."""

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

    def note_handwritten(self, name: str, module: nn.Module) -> None:
        """Note a module that computed attention with its own code, unless it is known to mix tokens in another way."""
        if name not in self._mixing and not _inside(name, self._mixing):
            self._handwritten[name] = type(module).__name__

    def missed_layers(self, intercepted: Collection[str]) -> dict[str, str]:
        """The layers that ran but were not intercepted, with the names of their classes."""
        outside = {
            name: kind for name, kind in self._ran.items() if not any(_inside(one, [name]) for one in intercepted)
        }
        return {
            name: kind
            for name, kind in (outside | self._handwritten).items()
            if name not in intercepted and not _inside(name, intercepted)
        }

    def reset(self) -> None:
        """Forget which layers ran."""
        self._ran.clear()
        self._handwritten.clear()

    def check(self, intercepted: Collection[str], *, finished: bool) -> None:
        """Raise UnsupportedError if a layer ran and was not intercepted; when `finished`, also if no layer ran."""
        missed = self.missed_layers(intercepted)
        if not missed and (intercepted or self.without_softmax or not finished):
            return
        total = len(self._ran.keys() | self._handwritten.keys())
        count = total - len(missed)
        if not missed:
            raise UnsupportedError(
                f"{self._caller}: no attention was recorded in {self._kind}. Call the model inside the with block, in "
                "the same thread. Scripted models and a handwritten softmax cannot be recorded: use "
                "F.scaled_dot_product_attention, or make a trace of the weights with Trace.from_attentions"
            )
        named = ", ".join(f"{name or 'the model itself'} ({kind})" for name, kind in list(missed.items())[:3])
        more = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
        raise UnsupportedError(
            f"{self._caller}: {count} of {total} attention layers of {self._kind} were recorded. Not recorded: "
            f"{named}{more}, which compute attention with their own code. For these, run the model with "
            "attn_implementation='eager' and output_attentions=True, and make a trace with "
            "Trace.from_attentions(outputs.attentions); or choose other layers with layers="
        )


def is_attention(module: nn.Module) -> bool:
    """Whether the class name of a module contains the word attention."""
    kind = type(module).__name__
    return bool(ATTENTION.search(kind)) and not HELPERS.search(kind)


def is_without_softmax(module: nn.Module) -> bool:
    """Whether the class name of a module is that of a token mixer without softmax."""
    return bool(WITHOUT_SOFTMAX.search(type(module).__name__))


def _inside(name: str, others: Iterable[str]) -> bool:
    """Whether a module is a submodule of one of these."""
    return any(name != other and name.startswith(f"{other}.") for other in others)
