"""`TraceScores`: labels of all heads of a trace, and where to begin, which improve in the background.

Links are sampled first, then all layers are scored on their first 2,048 queries, then on the whole text, one layer at a
time. Of a long text, a far link is the opening before anything is scored. In: a trace. Out: the best known scores of a
layer, and the opening, which stays once it is known. Any thread may call every method.
Does not know: HTTP. Memory: the scores and the statistics of one layer, O(n) per head.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from attnscope.atlas.atlas import FOREGROUND
from attnscope.atlas.background import Job, Worker
from attnscope.errors import AttnScopeError, Cancelled, UnsupportedError
from attnscope.explorer.analysis.layer_scores import MAX_QUERIES, layer_scores
from attnscope.explorer.analysis.opening import FAR, Choice, ScoredHead, choose_opening
from attnscope.explorer.analysis.sampled_links import HeadLinks, sample_links, strongest_link
from attnscope.explorer.analysis.slicing import slice_layer
from attnscope.explorer.cancellation import CancelCheck
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace

MIN_EARLY_STRENGTH = 0.5  # of a far link that is the opening before labels are known
MAX_SMALL_CELLS = 2**24  # of a layer that is scored while a client waits: a fraction of a second
MAX_WHOLE_CELLS = 2**34  # of a layer that is scored on its whole text: about a minute on one core
QUIET_SECONDS = 1.0  # after a request: the page draws what it got
WORKER = Worker()  # one per process, for all traces


class _LayerInfo(NamedTuple):
    """What is known about a layer before it is scored."""

    causal: bool
    queries: int
    keys: int
    cells: int

    @property
    def can_score_first(self) -> bool:
        """Whether the first queries have exact weights without later keys."""
        return self.causal or self.queries <= MAX_QUERIES

    @property
    def can_score_whole(self) -> bool:
        """Whether the whole text is not too long."""
        return self.cells <= MAX_WHOLE_CELLS


class TraceScores:
    """The scores of a trace so far.

    Args:
        trace: The trace.
        is_causal: Whether a layer is causal.
        get_matrix: The matrix of a layer for the first sequence.
    """

    def __init__(
        self, trace: Trace, is_causal: Callable[[int], bool], get_matrix: Callable[[int], AttentionMatrix]
    ) -> None:
        self._trace, self._get_matrix = trace, get_matrix
        self._infos = [
            _LayerInfo(is_causal(place), *layer.shape[2:], layer.shape[1] * layer.shape[2] * layer.shape[3])
            for place, layer in enumerate(trace.layers.values())
        ]
        self._scores: list[dict[str, Any] | AttnScopeError | None] = [None] * len(trace)
        self._links: list[list[HeadLinks] | None] = [None] * len(trace)
        self._opening: dict[str, Any] | None = None
        self._has_labels = False  # whether the opening was chosen with the labels of all layers
        self._computing = threading.Lock()
        self._job = Job(self._step, FOREGROUND, quiet_seconds=QUIET_SECONDS)

    def start(self) -> None:
        """Start the background work, or put it first."""
        WORKER.submit(self._job)

    def close(self) -> None:
        """Cancel the background work, and wait until it has stopped."""
        if not self._job.finished.is_set():
            WORKER.cancel(self._job)

    def layer(self, place: int) -> dict[str, Any] | None:
        """Return the best known scores of a layer, or None; raises the reason if it cannot be scored."""
        found = self._scores[place]
        if isinstance(found, AttnScopeError):
            raise found
        return found

    def put(self, place: int, scores: dict[str, Any]) -> None:
        """Use scores of a layer that were computed before, and do not score it."""
        with self._computing:
            self._scores[place] = scores
            self._infos[place] = self._infos[place]._replace(cells=MAX_WHOLE_CELLS + 1)

    def score_first(self, place: int, cancelled: CancelCheck) -> dict[str, Any] | None:
        """Score the first queries of a layer, unless it is scored; None if only the whole text can be scored."""
        with self._computing:
            if self._needs_first(place):
                self._scores[place] = self._score(place, MAX_QUERIES, cancelled)
        return self.layer(place)

    def score_small(self, place: int, cancelled: CancelCheck) -> dict[str, Any] | None:
        """Score a small layer on its whole text, unless it is scored; None if it is not small, or cannot be scored.

        It does not wait for background work, which pauses for requests; at worst both score the layer.
        """
        if self._infos[place].cells > MAX_SMALL_CELLS:
            return None
        known = self._scores[place]
        if self._needs_whole(place):
            known = self._scores[place] = self._score(place, None, cancelled)
        return known if isinstance(known, dict) else None

    def opening(self) -> dict[str, Any]:
        """Return where to begin, as far as it is known; raises what made the background work fail."""
        if self._job.error is not None and not isinstance(self._job.error, Cancelled):
            raise self._job.error
        pending = self._job.progress is not None and not self._job.finished.is_set()
        queries = max(info.queries for info in self._infos)
        empty = {"scored_queries": 0, "num_queries": queries, "opening": None, "cards": []}
        return {**(self._opening or empty), "pending": pending}

    def _step(self, _report: Callable[[float], object], cancelled: CancelCheck) -> bool:
        """Do the next step: the links of a layer, its first queries, or its whole text."""
        every = range(len(self._infos))
        place = next((place for place in every if self._links[place] is None), None)
        if place is not None:
            self._links[place] = self._sample(place, cancelled)
            if place == every[-1] and max(info.queries for info in self._infos) > MAX_QUERIES:
                self._open_early(cancelled)
            return False
        place = next((place for place in every if self._needs_first(place)), None)
        if place is not None:
            with suppress(UnsupportedError):  # it is kept, and raised by `layer`
                self.score_first(place, cancelled)
        else:
            place = next((place for place in every if self._needs_whole(place)), None)
            if place is not None:
                scores = self._score(place, None, cancelled)
                with self._computing:
                    self._scores[place] = scores
        if any(map(self._needs_first, every)):
            return False
        done = not any(map(self._needs_whole, every))
        if done or (not self._has_labels and all(self._scores)):
            self._opening, self._has_labels = self._find_opening(cancelled), True
        return done

    def _open_early(self, cancelled: CancelCheck) -> None:
        """Choose a strong far link as the opening, before labels are known."""
        opening, _ = choose_opening(self._scored_heads())
        if opening is not None and opening.label == FAR and opening.strength >= MIN_EARLY_STRENGTH:
            self._opening = self._find_opening(cancelled)

    def _needs_first(self, place: int) -> bool:
        info = self._infos[place]
        return self._scores[place] is None and (info.can_score_first or not info.can_score_whole)

    def _needs_whole(self, place: int) -> bool:
        known = self._scores[place]
        done = isinstance(known, AttnScopeError) or (known is not None and known["complete"])
        return not done and self._infos[place].can_score_whole

    def _sample(self, place: int, cancelled: CancelCheck) -> list[HeadLinks]:
        """Sample the links of a layer; one whose weights cannot be computed has none."""
        try:
            return sample_links(self._get_matrix(place).with_options(should_stop=cancelled))
        except Cancelled:
            raise
        except AttnScopeError:
            return []

    def _score(self, place: int, max_queries: int | None, cancelled: CancelCheck) -> dict[str, Any] | AttnScopeError:
        try:
            return layer_scores(
                self._trace,
                place,
                causal=self._infos[place].causal,
                max_queries=max_queries,
                cancelled=cancelled,
            )
        except Cancelled:
            raise
        except AttnScopeError as error:
            return error

    def _scored_heads(self) -> Iterator[ScoredHead]:
        for place, (known, links) in enumerate(zip(self._scores, self._links, strict=True)):
            for head, own in enumerate(links or ()):
                one = known["heads"][head] if isinstance(known, dict) else {"labels": (), "scores": {}}
                yield ScoredHead(place, head, one["labels"], one["scores"], own)

    def _find_opening(self, cancelled: CancelCheck) -> dict[str, Any]:
        """Choose the opening, unless it is known, and the cards, and find their links."""
        opening, cards = choose_opening(self._scored_heads())
        found = {choice: self._describe(choice, cancelled) for choice in {*cards, *filter(None, [opening])}}
        known = None if self._opening is None else self._opening["opening"]
        scored = [0 if not isinstance(one, dict) else one["scored_queries"] for one in self._scores]
        return {
            "scored_queries": min(scored),
            "num_queries": max(info.queries for info in self._infos),
            "opening": known or (None if opening is None else found[opening]),
            "cards": [found[card] for card in cards if found[card] is not None],
        }

    def _describe(self, choice: Choice, cancelled: CancelCheck) -> dict[str, Any] | None:
        """Describe a choice with its link, which is found in the scored queries; None without any."""
        link = choice.link
        if link is None:
            known = self._scores[choice.layer]
            queries = known["scored_queries"] if isinstance(known, dict) else None
            part = slice_layer(self._trace, choice.layer, queries=queries, heads=[choice.head], cancelled=cancelled)
            ids = part.ids(0)[1]
            matrix = part.layer(0).matrix().batch(0).head(0)
            link = strongest_link(matrix, choice.label, None if ids is None else ids[0].cpu())
        if link is None:
            return None
        return {
            "layer": choice.layer,
            "head": choice.head,
            "label": choice.label,
            "meaning": choice.meaning,
            "score": choice.score,
            "query": link.query,
            "key": link.key,
            "weight": link.weight,
        }
