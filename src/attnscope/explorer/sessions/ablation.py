"""Heads of a model on stage silenced: what that does to its predictions of a text it has read.

In: a trace that this model makes, and some of its heads. Out: the numbers of `measure_effect`. That a trace is of this
very model is tried on its first tokens, for the effect on another model would be no answer.
Does not know: servers. Memory: the logits of a text of at most 2,048 tokens, and what was predicted for the last few.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnscope.errors import Cancelled, SettingError, UnsupportedError
from attnscope.explorer.cancellation import CancelCheck, never_cancelled
from attnscope.explorer.sessions.model_session import ModelSession
from attnscope.heads import Effect, Predictions, ablate, predict
from attnscope.recording import Trace, read
from attnscope.recording.layers.recorded import Layer

MAX_TOKENS = 2048
MAX_LISTED = 10
MAX_KEPT = 4  # texts whose predictions without any change are kept
VERIFY_TOKENS = 8  # tokens that are read again to see whether a trace is of this model
VERIFY_TOLERANCE = (
    0.05  # how far queries may be apart, as a share of their length: several dtypes, and no other weights
)

How = Literal["zero", "mean"]


class Ablation:
    """A model on stage, and what it predicts of the last texts when it is whole."""

    def __init__(self, stage: ModelSession) -> None:
        self._stage = stage
        self._whole: OrderedDict[str, Predictions] = OrderedDict()

    def effect(
        self,
        trace: Trace,
        name: str,
        heads: Sequence[tuple[int, int]],
        how: How,
        cancelled: CancelCheck = never_cancelled,
    ) -> dict[str, Any]:
        """What the model predicts without some (layer, head) of a trace, which `name` tells from others.

        Layers and heads are numbered as in the trace. Raises what `ModelSession.run` raises, and
        UnsupportedError for texts that this model cannot run again.
        """
        chosen = heads_by_module(trace, heads)
        ids = self._ids(trace, chosen, how)
        with self._stage.acquire("ablate", cancelled) as model, _cancellable(model, cancelled):
            before = self._whole.get(name)
            if before is None:
                self._check_model(model, trace, ids, chosen, how)
                before = self._whole[name] = predict(model, ids, chunk_size=MAX_TOKENS)
            self._whole.move_to_end(name)
            while len(self._whole) > MAX_KEPT:
                self._whole.popitem(last=False)
            after = before
            if chosen:
                with ablate(model, chosen, how):
                    after = predict(model, ids, chunk_size=MAX_TOKENS)
        return self._told(Effect(ids, before, after))

    def _ids(self, trace: Trace, chosen: dict[str, list[int]], how: How) -> Tensor:
        ids = trace.ids(0)[1]
        if ids is None:
            raise UnsupportedError(
                "heads were to be silenced, and this trace does not hold the ids of its text, so that no model can "
                f"read it again. {_python_hint(chosen, how)}"
            )
        tokens = ids.shape[1]
        if tokens > MAX_TOKENS:
            raise UnsupportedError(
                f"heads were to be silenced in a text of {tokens:,} tokens; here it is done for up to "
                f"{MAX_TOKENS:,}, and {self._stage.name} would be read for a long time. {_python_hint(chosen, how)}"
            )
        return ids[:1]

    def _check_model(self, model: nn.Module, trace: Trace, ids: Tensor, chosen: dict[str, list[int]], how: How) -> None:
        """Read the first tokens again, and compare the queries of a layer."""
        name, known = next(iter(trace.layers.items()))
        if not isinstance(known, Layer) or not _is_model_of(model, known, name, ids):
            raise UnsupportedError(
                f"heads were to be silenced in {self._stage.name}, and this trace is of another model, or of other "
                f"weights. {_python_hint(chosen, how)}"
            )

    def _told(self, effect: Effect) -> dict[str, Any]:
        before, after, texts = effect.before.losses[0], effect.after.losses[0], self._stage.texts
        if not bool(before.isfinite().all() and after.isfinite().all()):
            raise UnsupportedError(f"{self._stage.name} predicts what is no number (NaN) for this text")
        most = effect.loss_change[0].topk(min(MAX_LISTED, len(before))).indices.tolist()
        harder = [at for at in most if after[at] > before[at]]
        return {
            "tokens": effect.ids.shape[1],
            "loss": [float(before.mean()), float(after.mean())],
            "harder": [
                [at + 1, text, float(before[at]), float(after[at])]
                for at, text in zip(harder, texts([int(effect.ids[0, at + 1]) for at in harder]), strict=True)
            ],
            "next": [[texts([one.token])[0], one.before, one.after] for one in effect.next_tokens(MAX_LISTED)],
        }


def heads_by_module(trace: Trace, heads: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
    """Heads as `ablate` takes them: by the name of their layer, with the number that they have in their model."""
    found: dict[str, list[int]] = {}
    for place, head in dict.fromkeys(heads):
        if not 0 <= place < len(trace) or not 0 <= head < trace.layer(place).shape[1]:
            raise SettingError(f"head {head} of layer {place} was to be silenced, which this trace does not have")
        layer = trace.layer(place)
        numbers = found.setdefault(layer.name.partition("#")[0], [])  # name#2 is the same module, called again
        numbers += [number for number in [layer.heads[head]] if number not in numbers]
    return found


def _is_model_of(model: nn.Module, known: Layer, name: str, ids: Tensor) -> bool:
    """Whether a model has these queries in this layer when it reads these ids."""
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    module = name.partition("#")[0]
    if module not in dict(model.named_modules()) or (size is not None and int(ids.max()) >= size):
        return False
    again = read(model, ids[:, :VERIFY_TOKENS], layers=[module], progress=False).layer(name)
    if not isinstance(again, Layer) or max(known.heads) >= again.shape[1]:
        return False
    found, wanted = (
        again.joined().query[:, list(known.heads)].double(),
        known.joined().query[:1, :, :VERIFY_TOKENS].double(),
    )
    if found.shape != wanted.shape:
        return False
    return bool((found - wanted.to(found)).norm() <= VERIFY_TOLERANCE * wanted.norm())


@contextmanager
def _cancellable(model: nn.Module, cancelled: CancelCheck) -> Iterator[None]:
    """Ask before each block of a model whether it is still wanted; the model may also be at work in another thread."""
    mine = get_ident()

    def check(*_: object) -> None:
        if get_ident() == mine and cancelled():
            raise Cancelled("heads were being silenced for somebody who does not wait any more")

    blocks = [block for some in model.modules() if isinstance(some, nn.ModuleList) for block in some]
    with ExitStack() as stack, torch.no_grad():
        for block in blocks:
            stack.enter_context(block.register_forward_pre_hook(check))
        yield


def _python_hint(chosen: dict[str, list[int]], how: How) -> str:
    return (
        "With the model in Python: from attnscope.heads import ablate, measure_effect; "
        f"print(measure_effect(model, text, ablate(model, {str(chosen)[:400]}, {how!r}), tokenizer))"
    )
