"""The effect of ablating heads on the predictions of a session's model.

In: a trace of this model, and some of its heads. Out: the numbers of `attnscope.heads.measure_effect`. Whether the
trace is of this model is checked on its first tokens. Does not know: servers.
Memory: the logits of a text of at most 2,048 tokens, and the unablated predictions of the last few texts.
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
MAX_CACHED = 4  # texts whose unablated predictions are cached
VERIFY_TOKENS = 8  # tokens to run again, to verify that a trace is of this model
VERIFY_TOLERANCE = 0.05  # relative error of queries: allows for dtypes, not for other parameters

How = Literal["zero", "mean"]


class Ablation:
    """Ablates heads of a session's model, and caches its unablated predictions of the last texts."""

    def __init__(self, session: ModelSession) -> None:
        self._session = session
        self._unablated: OrderedDict[str, Predictions] = OrderedDict()

    def effect(
        self,
        trace: Trace,
        name: str,
        heads: Sequence[tuple[int, int]],
        how: How,
        cancelled: CancelCheck = never_cancelled,
    ) -> dict[str, Any]:
        """Compare the predictions of the model with and without some heads.

        Args:
            trace: A trace of this model.
            name: A key for the trace, under which its unablated predictions are cached.
            heads: (layer, head) pairs, counted as in the trace.
            how: "zero" or "mean", as for `attnscope.heads.ablate`.
            cancelled: The cancellation check.

        Returns:
            The losses before and after, the tokens that became harder to predict, and the next tokens.

        Raises:
            UnsupportedError: The model cannot run this text again. Also raises what `ModelSession.run` raises.
            SettingError: The trace does not have one of the heads.
        """
        chosen = heads_by_module(trace, heads)
        ids = self._ids(trace, chosen, how)
        with self._session.acquire("ablate", cancelled) as model, _cancellable(model, cancelled):
            before = self._unablated.get(name)
            if before is None:
                self._check_model(model, trace, ids, chosen, how)
                before = self._unablated[name] = predict(model, ids, chunk_size=MAX_TOKENS)
            self._unablated.move_to_end(name)
            while len(self._unablated) > MAX_CACHED:
                self._unablated.popitem(last=False)
            after = before
            if chosen:
                with ablate(model, chosen, how):
                    after = predict(model, ids, chunk_size=MAX_TOKENS)
        return self._report(Effect(ids, before, after))

    def _ids(self, trace: Trace, chosen: dict[str, list[int]], how: How) -> Tensor:
        ids = trace.ids(0)[1]
        if ids is None:
            raise UnsupportedError(
                "ablate: expected a trace with token ids, which are needed to run its text again. "
                f"{_python_hint(chosen, how)}"
            )
        tokens = ids.shape[1]
        if tokens > MAX_TOKENS:
            raise UnsupportedError(
                f"ablate: expected a text of at most {MAX_TOKENS:,} tokens, got {tokens:,}. {_python_hint(chosen, how)}"
            )
        return ids[:1]

    def _check_model(self, model: nn.Module, trace: Trace, ids: Tensor, chosen: dict[str, list[int]], how: How) -> None:
        """Raise UnsupportedError unless the first tokens give the queries in the trace."""
        name, known = next(iter(trace.layers.items()))
        if not isinstance(known, Layer) or not _is_model_of(model, known, name, ids):
            raise UnsupportedError(
                f"ablate: expected a trace of {self._session.name}, got one of another model or of other parameters. "
                f"{_python_hint(chosen, how)}"
            )

    def _report(self, effect: Effect) -> dict[str, Any]:
        before, after, texts = effect.before.losses[0], effect.after.losses[0], self._session.texts
        if not bool(before.isfinite().all() and after.isfinite().all()):
            raise UnsupportedError(f"{self._session.name} predicts NaN or infinite losses for this text")
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
    """Convert (layer, head) of a trace to what `ablate` takes: heads by module name, as the model counts them."""
    found: dict[str, list[int]] = {}
    for place, head in dict.fromkeys(heads):
        if not 0 <= place < len(trace) or not 0 <= head < trace.layer(place).shape[1]:
            raise SettingError(f"ablate: head {head} of layer {place} is not in this trace")
        layer = trace.layer(place)
        numbers = found.setdefault(layer.name.partition("#")[0], [])  # name#2 is the same module, called again
        numbers += [number for number in [layer.heads[head]] if number not in numbers]
    return found


def _is_model_of(model: nn.Module, known: Layer, name: str, ids: Tensor) -> bool:
    """Whether the model computes the queries of a recorded layer from these ids."""
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    module = name.partition("#")[0]
    if module not in dict(model.named_modules()) or (size is not None and int(ids.max()) >= size):
        return False
    again = read(model, ids[:, :VERIFY_TOKENS], layers=[module], progress=False).layer(name)
    if not isinstance(again, Layer) or max(known.heads) >= again.shape[1]:
        return False
    found, wanted = (
        again.merge_calls().query[:, list(known.heads)].cpu().double(),
        known.merge_calls().query[:1, :, :VERIFY_TOKENS].cpu().double(),
    )
    if found.shape != wanted.shape:
        return False
    return bool((found - wanted).norm() <= VERIFY_TOLERANCE * wanted.norm())


@contextmanager
def _cancellable(model: nn.Module, cancelled: CancelCheck) -> Iterator[None]:
    """Check for cancellation before each block of a model, in this thread only."""
    own_thread = get_ident()

    def check(*_: object) -> None:
        if get_ident() == own_thread and cancelled():
            raise Cancelled("the ablation was cancelled")

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
