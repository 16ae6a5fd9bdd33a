"""The effect of ablating heads on the predictions of a session's model.

In: a trace of this model, and some of its heads. Out: the numbers of `attnscope.heads.measure_effect`. Whether the
trace is of this model is checked on its first tokens. Does not know: servers.
Memory: the logits of at most 2,048 tokens, and the unablated predictions of the last few texts.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscope.errors import Cancelled, SettingError, UnsupportedError
from attnscope.explorer.cancellation import CancelCheck, never_cancelled
from attnscope.explorer.sessions.model_check import is_model_of
from attnscope.explorer.sessions.model_session import BusyError, ModelSession
from attnscope.heads import Effect, Predictions, ablate, predict
from attnscope.models import Decoder
from attnscope.recording import Trace
from attnscope.recording.layers.recorded import Layer

WHOLE_TOKENS = 2048  # of a text whose logits are computed at once
CHUNK_SIZE = 512  # of longer texts
TIMED_TOKENS = 128  # of the pass that the time of others is estimated from
BUSY_SECONDS = 0.2  # before the model is requested again
MAX_LISTED = 10
MAX_CACHED = 4  # texts whose unablated predictions are cached

How = Literal["zero", "mean"]


class Ablation:
    """Ablates heads of a session's model, and caches its unablated predictions of the last texts."""

    def __init__(self, session: ModelSession) -> None:
        self._session = session
        self._unablated: OrderedDict[str, Predictions] = OrderedDict()
        self._rate: float | None = None  # seconds per operation

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
            estimate = self._estimate_pass(model, trace, ids, chosen, how)
            before = self._predict_unablated(model, trace, name, ids, chosen, how)
            after = before
            if chosen:
                with ablate(model, chosen, how):
                    after = _predict(model, ids, how)
        return self._report(Effect(ids, before, after)) | {"estimate_seconds": estimate * (1 + bool(chosen))}

    def estimate(
        self, trace: Trace, heads: Sequence[tuple[int, int]], how: How, cancelled: CancelCheck = never_cancelled
    ) -> dict[str, float]:
        """Estimate how many seconds `effect` and `effect_of_each` take, from a pass over the first tokens."""
        chosen = heads_by_module(trace, heads)
        ids = self._ids(trace, chosen, how)
        with self._session.acquire("ablate", cancelled) as model, _cancellable(model, cancelled):
            seconds = self._estimate_pass(model, trace, ids, chosen, how)
        num_heads = sum(layer.shape[1] for layer in trace.layers.values())
        return {"estimate_seconds": seconds * (1 + bool(chosen)), "each_seconds": seconds * (1 + num_heads)}

    def effect_of_each(
        self, trace: Trace, name: str, how: How, cancelled: CancelCheck = never_cancelled
    ) -> Generator[dict[str, Any], None, None]:
        """Ablate every head of a trace alone, and yield the change of the mean loss in nats.

        Other requests can use the model between two heads. Arguments and errors are those of `effect`.
        """
        ids = self._ids(trace, {}, how)
        places = [(place, head) for place, layer in enumerate(trace.layers.values()) for head in range(layer.shape[1])]
        for place, head in places:
            chosen = heads_by_module(trace, [(place, head)])
            with self._wait_for_model(cancelled) as model, _cancellable(model, cancelled):
                before = self._predict_unablated(model, trace, name, ids, chosen, how)
                with ablate(model, chosen, how):
                    after = _predict(model, ids, how)
            effect = float((after.losses.double() - before.losses.double()).mean())
            if not math.isfinite(effect):
                raise UnsupportedError(f"{self._session.name} predicts NaN or infinite losses for this text")
            yield {"layer": place, "head": head, "effect": effect}

    @contextmanager
    def _wait_for_model(self, cancelled: CancelCheck) -> Iterator[nn.Module]:
        """Hold the model, and wait as long as its queue is full."""
        with ExitStack() as stack:
            while True:
                try:
                    model = stack.enter_context(self._session.acquire("ablate each", cancelled))
                    break
                except BusyError:
                    time.sleep(BUSY_SECONDS)
            yield model

    def _predict_unablated(
        self, model: nn.Module, trace: Trace, name: str, ids: Tensor, chosen: dict[str, list[int]], how: How
    ) -> Predictions:
        before = self._unablated.get(name)
        if before is None:
            self._check_model(model, trace, ids, chosen, how)
            before = self._unablated[name] = _predict(model, ids, how)
        self._unablated.move_to_end(name)
        while len(self._unablated) > MAX_CACHED:
            self._unablated.popitem(last=False)
        return before

    def _estimate_pass(
        self, model: nn.Module, trace: Trace, ids: Tensor, chosen: dict[str, list[int]], how: How
    ) -> float:
        """Estimate the seconds of a pass over a text, from the time of its first tokens."""
        tokens = ids.shape[1]
        if tokens <= TIMED_TOKENS:
            return 0.0
        if self._rate is None:
            self._check_model(model, trace, ids, chosen, how)
            some = ids[:, :TIMED_TOKENS]
            predict(model, some)  # the first pass takes longer
            started = time.perf_counter()
            predict(model, some)
            self._rate = (time.perf_counter() - started) / _count_operations(model, trace, TIMED_TOKENS)
        return self._rate * _count_operations(model, trace, tokens)

    def _ids(self, trace: Trace, chosen: dict[str, list[int]], how: How) -> Tensor:
        ids = trace.ids(0)[1]
        if ids is None:
            raise UnsupportedError(
                "ablate: expected a trace with token ids, which are needed to run its text again. "
                f"{_python_hint(chosen, how)}"
            )
        return ids[:1]

    def _check_model(self, model: nn.Module, trace: Trace, ids: Tensor, chosen: dict[str, list[int]], how: How) -> None:
        """Raise UnsupportedError unless the first tokens give the queries in the trace."""
        if not is_model_of(model, trace, ids):
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
            "loss": [float(before.double().mean()), float(after.double().mean())],
            "harder": [
                [at + 1, text, float(before[at]), float(after[at])]
                for at, text in zip(harder, texts([int(effect.ids[0, at + 1]) for at in harder]), strict=True)
            ],
            "next": [[texts([one.token])[0], one.before, one.after] for one in effect.next_tokens(MAX_LISTED)],
        }


def _predict(model: nn.Module, ids: Tensor, how: How) -> Predictions:
    """Predict a text; a long one in chunks, with a KV cache. The mean of a head is over the whole text in one pass."""
    if ids.shape[1] <= WHOLE_TOKENS:
        return predict(model, ids, chunk_size=WHOLE_TOKENS)
    if how == "zero":
        return predict(model, ids, chunk_size=CHUNK_SIZE)
    if not isinstance(model, Decoder):
        raise UnsupportedError(
            f"ablate: the mean of a head needs the whole text in one pass, so at most {WHOLE_TOKENS:,} tokens for "
            f"{type(model).__name__}, got {ids.shape[1]:,}; ablate by zero instead"
        )
    ids = ids.to(model.device)
    states = model.features(ids)[0]
    losses = [
        functional.cross_entropy(model.logits(some).float(), following, reduction="none")
        for some, following in zip(states[:-1].split(CHUNK_SIZE), ids[0, 1:].split(CHUNK_SIZE), strict=True)
    ]
    return Predictions(torch.cat(losses)[None], model.logits(states[-1:]).float().softmax(-1))


def _count_operations(model: nn.Module, trace: Trace, tokens: int) -> float:
    """Count the operations of a pass, approximately: two per parameter and token, and those of causal attention."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    heads = sum(1 + max(layer.heads) for layer in trace.layers.values())
    layer = next(iter(trace.layers.values()))
    dim = layer.merge_calls().query.shape[-1] if isinstance(layer, Layer) else 0
    return 2.0 * parameters * tokens + 2.0 * heads * dim * tokens**2


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
