"""Labels for heads, from thresholds on their scores.

A label says what a head mostly does on the texts that it was scored on. A head may have several, and most heads of a
trained model have none: they are "mixed". In: a table of scores. Out: the same table with labels.
Does not know: where scores come from. Memory: nothing beside the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from attnscope.errors import SettingError, unknown
from attnscope.heads.table import HeadTable

MIXED = "mixed"
TIMES_ERROR = 5.0
RELATIONS = ("agreement", "coreference")
"""Labels that are decided by sentences of their own."""


@dataclass(frozen=True)
class Label:
    """A name, the scores that decide it (the first that is there counts), the least value, and what it means."""

    name: str
    scores: tuple[str, ...]
    least: float
    meaning: str

    def is_earned(self, value: float, error: float) -> bool:
        """Whether a score is enough: the least value, and five standard errors where an error is known."""
        return value >= self.least and value >= TIMES_ERROR * error

    def score_in(self, table: HeadTable) -> str | None:
        """The score of a table that decides."""
        return next((score for score in self.scores if score in table.columns), None)


LABELS = (
    Label(
        "induction",
        ("induction_probe", "induction"),
        0.3,
        "Looks at the token that came after another place of the current one, and so expects a text to go on as it "
        "went on before: after A B ... A it looks at B. On the standard probe nothing else can predict the second "
        "half. Such heads stand behind heads that look at the previous token, which tell each key what came before "
        "it; without those they are lost.",
    ),
    Label(
        "duplicate",
        ("duplicate_probe", "duplicate"),
        0.3,
        "Looks at other places of the very same token. It tells that a token is not new, and where it was, which names "
        "and repeated words need.",
    ),
    Label(
        "agreement",
        ("agreement",),
        0.1,
        "Looks from a verb to its subject rather than to another noun, wherever both stand. Scored on short sentences "
        "made from templates, in which the two nouns trade places, so that looking at a fixed distance gains nothing. "
        "Looking is not using: whether the verb is chosen by it, only ablation tells.",
    ),
    Label(
        "coreference",
        ("coreference",),
        0.1,
        "Looks from a pronoun to the person it stands for rather than to another person, whoever was named first. "
        "Scored on short sentences made from templates, with the names exchanged.",
    ),
    Label(
        "previous",
        ("previous",),
        0.5,
        "Looks at the token before. It gives every position a note of what came before it: words are put together "
        "from their pieces, and induction heads find what they look for.",
    ),
    Label(
        "next",
        ("next",),
        0.5,
        "Looks at the token after, which only models that look both ways can do: the mirror image of a head that looks "
        "at the previous token.",
    ),
    Label(
        "self",
        ("self",),
        0.5,
        "Looks at its own token, so that it passes on what is already there: it acts on each position much like a "
        "feed-forward layer.",
    ),
    Label(
        "local",
        ("local",),
        0.7,
        "Looks at the neighbourhood, at most eight tokens away. Heads that look at the previous or their own token are "
        "local, too.",
    ),
    Label(
        "sink",
        ("sink",),
        0.5,
        "Puts most of its weight on the first token of the text, whatever that is. The weights of a row have to go "
        "somewhere; the value of the first token is small, so that a head which finds nothing rests there. "
        "Induction heads are sinks wherever nothing repeats.",
    ),
    Label(
        "broad",
        ("evenness",),
        0.8,
        "Spreads its weight over nearly all tokens alike: its entropy is close to that of equal weights. What it says "
        "is a mean over the text so far.",
    ),
)
"""From the most telling to the least: the first label of a head is the one to call it by."""


def label_named(name: str) -> Label:
    """The label of this name."""
    for label in LABELS:
        if label.name == name:
            return label
    raise SettingError(unknown("label", name, [label.name for label in LABELS]))


def labelled(table: HeadTable) -> HeadTable:
    """The table with the labels that its scores earn; a score that is NaN earns none."""
    earned: list[list[str]] = [[] for _ in range(len(table))]
    for label in LABELS:
        score = label.score_in(table)
        if score is not None:
            errors = table.columns.get(f"{score}_error", torch.zeros(len(table)))
            for row, value, error in zip(earned, table[score].tolist(), errors.tolist(), strict=True):
                if label.is_earned(value, error):
                    row.append(label.name)
    return replace(table, labels=tuple(tuple(row) or (MIXED,) for row in earned))
