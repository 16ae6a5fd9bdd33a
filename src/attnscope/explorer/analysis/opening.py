"""Where to begin with a text: the most distinctive head, and the best head of each label.

In: labels, scores and sampled links of all heads. Out: the heads that were chosen. A head is as distinctive as its
label is specific and its score high, without the share of its attention that the first token receives.
Does not know: servers, weights. Memory: one choice per head and label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from attnscope.explorer.analysis.inspection import get_meaning
from attnscope.explorer.analysis.sampled_links import HeadLinks, Link
from attnscope.heads.labels import MIXED, get_label

FAR = "far"
FAR_MEANING = (
    "Attends from one token to another far away, to which few other tokens attend: it retrieves something specific."
)
MIN_FAR_EXCESS = 0.3  # of a link that deserves a card
MAX_CARDS = 6
SPECIFICITY = {
    FAR: 1.0,
    "induction": 1.0,
    "duplicate": 0.9,
    "coreference": 0.9,
    "agreement": 0.9,
    "previous": 0.6,
    "next": 0.6,
    "sink": 0.0,
    "broad": 0.2,
    "local": 0.3,
    "self": 0.3,
    MIXED: 0.1,
}
"""How much each label says about a head; its cards are in this order."""
WHERE_IT_OCCURS = ("induction", "duplicate", "sink")
"""Labels whose score needs no correction: rows without the pattern, which attend to the first token, do not count."""


class ScoredHead(NamedTuple):
    """A head with its labels, scores and sampled links."""

    layer: int
    head: int
    labels: Sequence[str]
    scores: Mapping[str, float]
    links: HeadLinks


class Choice(NamedTuple):
    """A head that was chosen for a label; its link, if it is known, and how distinctive it is."""

    layer: int
    head: int
    label: str
    score: float
    link: Link | None
    strength: float

    @property
    def meaning(self) -> str:
        """What such a head does."""
        return FAR_MEANING if self.label == FAR else get_meaning(self.label)


def choose_opening(heads: Iterable[ScoredHead]) -> tuple[Choice | None, list[Choice]]:
    """Choose the most distinctive head, and the best head of each label.

    Args:
        heads: All heads that have scores.

    Returns:
        The opening, and at most six cards. The opening is None only if no head has a link; equal heads are chosen in
        order.
    """
    best: dict[str, Choice] = {}
    for scored in heads:
        for choice in _choices(scored):
            if choice.label not in best or choice.strength > best[choice.label].strength:
                best[choice.label] = choice
    cards = [best[label] for label in SPECIFICITY if label in best and label != MIXED][:MAX_CARDS]
    ranked = [choice for choice in best.values() if SPECIFICITY[choice.label] > 0]
    opening = max(ranked, key=lambda choice: choice.strength * SPECIFICITY[choice.label], default=None)
    return opening, cards


def _choices(scored: ScoredHead) -> Iterable[Choice]:
    """Yield a choice for each label of a head, for its far link, and for any link."""
    place = scored.layer, scored.head
    far, any_link = scored.links.far, scored.links.any
    if far is not None and far.excess >= MIN_FAR_EXCESS:
        yield Choice(*place, FAR, far.weight, far, far.excess)
    for label in scored.labels:
        if label != MIXED and label in SPECIFICITY:
            score = scored.scores[next(name for name in get_label(label).scores if name in scored.scores)]
            others = 1.0 if label in WHERE_IT_OCCURS else 1.0 - scored.scores.get("sink", 0.0)
            yield Choice(*place, label, score, None, score * others)
    if any_link is not None:
        yield Choice(*place, MIXED, any_link.weight, any_link, any_link.excess)
