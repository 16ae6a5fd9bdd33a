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
        "Attends to the token after another occurrence of the current token: after A B ... A it attends to B, and so "
        "predicts that the sequence repeats. On the repeated-token probe, nothing else predicts the second half. "
        "Induction heads depend on previous-token heads in earlier layers, which write into each position which token "
        "came before it.",
    ),
    Label(
        "duplicate",
        ("duplicate_probe", "duplicate"),
        0.3,
        "Attends to other occurrences of the same token. It marks a token as repeated and shows where it occurred, "
        "which names and repeated words need.",
    ),
    Label(
        "agreement",
        ("agreement",),
        0.1,
        "Attends from a verb to its subject rather than to another noun, in either order of the two nouns. Scored on "
        "short template sentences in which the two nouns swap places, so attending to a fixed distance gains nothing. "
        "High attention does not imply use: only ablation shows whether the head affects the verb.",
    ),
    Label(
        "coreference",
        ("coreference",),
        0.1,
        "Attends from a pronoun to the person it refers to rather than to another person, in either order of the two "
        "names. Scored on short template sentences with the names swapped.",
    ),
    Label(
        "previous",
        ("previous",),
        0.5,
        "Attends to the previous token. It copies information about that token into the current position, which is "
        "needed to join the pieces of a word, and by induction heads.",
    ),
    Label(
        "next",
        ("next",),
        0.5,
        "Attends to the next token, which only models without a causal mask can do. It is the mirror image of a "
        "previous-token head.",
    ),
    Label(
        "self",
        ("self",),
        0.5,
        "Attends to its own token, so it passes on what is already at that position. It acts on each position much "
        "like a feed-forward layer.",
    ),
    Label(
        "local",
        ("local",),
        0.7,
        "Attends to nearby tokens, at most eight positions away. Heads that attend to the previous token or to their "
        "own token are local, too.",
    ),
    Label(
        "sink",
        ("sink",),
        0.5,
        "Puts most of its attention on the first token of the text, whatever that token is. The weights of a row must "
        "sum to one. The value vector of the first token is small, so a head that finds nothing to attend to can leave "
        "its attention there. Induction heads are sinks where nothing repeats.",
    ),
    Label(
        "broad",
        ("evenness",),
        0.8,
        "Spreads its attention almost evenly over all tokens: its entropy is close to that of uniform weights. Its "
        "output is close to a mean over the text so far.",
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
