"""`measure_eviction`: what a model loses when pairs of its KV cache are evicted, for several policies and budgets.

The context is read once. Then the continuation is read from the same KV cache, with all pairs and with the pairs that
each policy keeps. In: a decoder and a text. Out: an `EvictionReport`.
Does not know: files. Memory: the KV cache, queries and keys of the context, and the logits of the continuation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.cache.budgets import LaterWeights, later_weights, lost_weight
from attnscope.cache.eviction import evicted
from attnscope.cache.kept_pairs import KeptPairs, PairScores, score_pairs
from attnscope.cache.policies import POLICIES
from attnscope.errors import SettingError, UnsupportedError, unknown
from attnscope.heads import HeadTable
from attnscope.heads.effects import predicts_next_token
from attnscope.heads.needles import Document, insert_needles, word_needles
from attnscope.progress import Progress, report_progress
from attnscope.recording import record
from attnscope.recording.chunks import cached_run
from attnscope.recording.reading import CHUNK_SIZE, to_input_ids


class EvictionResult(NamedTuple):
    """What changes with the pairs that a policy keeps."""

    kept: KeptPairs
    losses: Tensor
    """The loss of each token of the continuation but the first, in nats, (tokens - 1,)."""
    kl: Tensor
    """KL divergence of the next-token distribution from that with all pairs, in nats, (tokens,)."""
    found: Tensor
    """For each needle, whether the model predicts its answer, (needles,)."""
    lost: HeadTable
    """For each query head, the mean weight that queries of the continuation had on the evicted pairs."""

    @property
    def loss(self) -> float:
        """The mean loss of the continuation."""
        return float(self.losses.mean())


@dataclass(frozen=True, eq=False)
class EvictionReport:
    """The results of all policies and budgets.

    Attributes:
        context: The number of tokens of the context, with needles.
        losses: The loss of each token of the continuation but the first, with all pairs, in nats, (tokens - 1,).
        found: For each needle, whether the model with all pairs predicts its answer, (needles,).
        results: One result for each policy and budget.
        scores: The scores of all pairs by policy.
        later: The mean weight of the queries of the continuation on each key, with all pairs.
    """

    context: int
    losses: Tensor
    found: Tensor
    results: Sequence[EvictionResult]
    scores: dict[str, PairScores]
    later: LaterWeights

    @property
    def loss(self) -> float:
        """The mean loss of the continuation with all pairs."""
        return float(self.losses.mean())


def measure_eviction(
    model: nn.Module,
    text: str | Sequence[int] | Tensor,
    tokenizer: Any = None,
    *,
    keep: Sequence[float] = (0.5, 0.25, 0.1),
    by: Sequence[str] = tuple(POLICIES),
    per: Literal["head", "layer"] = "head",
    continuation: int = 256,
    needles: int = 0,
    seed: int = 0,
    progress: Progress | bool = True,
) -> EvictionReport:
    """Measure the loss of a continuation after pairs of its context have been evicted.

    Args:
        model: A decoder in eval mode.
        text: The text, or its token ids; the last tokens are the continuation.
        tokenizer: Needed if `text` is a string, or for needles.
        keep: Shares of the pairs to keep.
        by: Names of policies; see `POLICIES`.
        per: Whether each head or each layer keeps the same number of pairs; see `PairScores.keep`.
        continuation: The number of tokens of the continuation.
        needles: The number of facts that are put into the context and asked for after it.
        seed: Seeds needles and the policy "random".
        progress: False for no progress bar, or a function called with the number of finished and of all runs.

    Returns:
        One result for each policy and share of pairs, and the loss with all pairs.

    Raises:
        SettingError: An argument is invalid.
        UnsupportedError: The model is not a decoder with a KV cache.

    >>> from attnscope.models import Decoder, DecoderConfig
    >>> config = DecoderConfig(
    ...     vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=64, max_position_embeddings=64
    ... )
    >>> model = Decoder(config).eval()
    >>> found = measure_eviction(model, list(range(40)), keep=[0.5], by=["recent"], continuation=8, progress=False)
    >>> found.results[0].kept
    KeptPairs(recent, 128 pairs, 50.0% of 32 tokens)
    """
    for name in by:
        if name not in POLICIES:
            raise SettingError(f"cache: {unknown('policy', name, POLICIES)}")
    if not by or not keep or any(not 0 < share <= 1 for share in keep):
        raise SettingError(
            f"measure_eviction: expected policies, and shares above 0 and at most 1, got {by} and {keep}"
        )
    ids = to_input_ids(text, tokenizer, caller="measure_eviction")
    if len(ids) != 1 or not 1 < continuation < ids.shape[1]:
        raise SettingError(
            "measure_eviction: expected one text, and a continuation of at least 2 of its tokens, got ids "
            f"{tuple(ids.shape)} and continuation={continuation}"
        )
    if needles and tokenizer is None:
        raise SettingError("measure_eviction: needles need a tokenizer")
    drawn = word_needles(tokenizer, needles, seed=seed) if needles else []
    asked = {(at + 0.5) / needles: needle for at, needle in enumerate(drawn)}
    document = insert_needles(ids[0, :-continuation].tolist(), asked, seed=seed)
    total = 1 + len(by) * len(keep)
    with torch.no_grad(), report_progress(progress, "evicting pairs") as report:
        experiment = _Experiment(model, document, ids[:, -continuation:])
        base, found, later = experiment.intact()
        report(1, total)
        results: list[EvictionResult] = []
        scores = {name: score_pairs(experiment.trace, name, seed=seed, progress=False) for name in by}
        for name in by:
            for share in keep:
                kept = scores[name].keep(share, per=per)
                results.append(experiment.evicted(kept, base, later))
                report(1 + len(results), total)
    return EvictionReport(document.start, experiment.losses(base), found, results, scores, later)


class _Experiment:
    """A model that has read a context, and can read its continuation several times."""

    def __init__(self, model: nn.Module, document: Document, continuation: Tensor) -> None:
        run = cached_run(model) if predicts_next_token(model) else None
        if run is None:
            raise UnsupportedError(f"measure_eviction: {type(model).__name__} is not a decoder with a KV cache")
        if model.training:
            raise SettingError("measure_eviction: the model is in training mode; call model.eval()")
        self._model, self._run, self._document = model, run, document
        device = next((parameter.device for parameter in model.parameters()), None)
        ids = document.ids[None].to(device)
        self._continuation, self._questions = continuation.to(device), ids[:, document.start :]
        with record(model) as self.trace:
            for some in ids[:, : document.start].split(CHUNK_SIZE, 1):
                run(some, logits=False)

    def intact(self) -> tuple[Tensor, Tensor, LaterWeights]:
        """The log-probabilities of the continuation, the found needles, and the weights of the continuation."""
        with self._run.branch(), record(self._model) as later:
            base = self._read(self._continuation)
        return base, self._found(nullcontext), later_weights(later, self._document.start)

    def evicted(self, kept: KeptPairs, base: Tensor, later: LaterWeights) -> EvictionResult:
        """The same with only the kept pairs."""
        with self._run.branch(), evicted(self._model, kept):
            changed = self._read(self._continuation)
        kl = (base.exp() * (base - changed)).sum(-1)[0]
        found = self._found(lambda: evicted(self._model, kept))
        return EvictionResult(kept, self.losses(changed), kl.cpu(), found, lost_weight(kept, later))

    def _read(self, ids: Tensor) -> Tensor:
        """The log-probabilities of the token after each of these tokens, (1, tokens, vocab_size)."""
        output = self._run(ids, logits=True)
        return getattr(output, "logits", output).float().log_softmax(-1)

    def losses(self, log_probs: Tensor) -> Tensor:
        """The loss of each token of the continuation but its first, which the last query of the context predicts."""
        return F.nll_loss(log_probs[0, :-1], self._continuation[0, 1:], reduction="none").cpu()

    def _found(self, intervention: Callable[[], AbstractContextManager[object]]) -> Tensor:
        """Whether the model predicts all tokens of each answer."""
        found = []
        if self._questions.shape[1]:
            with self._run.branch(), intervention():
                predicted = self._read(self._questions)[0].argmax(-1)
            start = self._document.start
            for question in self._document.questions:
                answer = self._questions[0, question.answer.start - start : question.answer.stop - start]
                rows = predicted[question.rows.start - start : question.rows.stop - start]
                found.append(bool((rows == answer).all()))
        return torch.tensor(found, dtype=torch.bool)
