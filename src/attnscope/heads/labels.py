"""Labels for heads, from thresholds on their scores.

A label describes what a head mostly does on the texts it was scored on. A head may have several labels. Most heads of a
trained model have none and are "mixed". In: a table of scores. Out: the same table with labels.
Does not know: where scores come from. Memory: that of the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from attnscope.errors import SettingError, unknown
from attnscope.heads.table import HeadTable

MIXED = "mixed"
MIN_STANDARD_ERRORS = 5.0
RELATIONS = ("agreement", "coreference")
"""Labels that are decided by template sentences."""


@dataclass(frozen=True)
class Label:
    """A name for heads with a high score.

    Attributes:
        name: The label.
        scores: The scores that can decide it; the first one that a table has is used.
        threshold: The lowest score that earns the label.
        meaning: What such a head does.
    """

    name: str
    scores: tuple[str, ...]
    threshold: float
    meaning: str

    def applies(self, score: float, standard_error: float = 0.0) -> bool:
        """Whether a score reaches the threshold, and five standard errors.

        Args:
            score: The score of a head.
            standard_error: Its standard error.

        Returns:
            Whether the head has the label.
        """
        return score >= self.threshold and score >= MIN_STANDARD_ERRORS * standard_error

    def find_score(self, table: HeadTable) -> str | None:
        """Return the name of the score in a table that decides this label, or None.

        Args:
            table: A table of heads.

        Returns:
            The name of the score.
        """
        return next((score for score in self.scores if score in table.columns), None)


LABELS = (
    Label(
        "retrieval",
        ("retrieval",),
        0.1,
        "Attends from a query that predicts a token of an answer to that token in a fact far back in the text, with "
        "its largest weight. Scored on needles in a long text. The model needs such heads to use what it has read long "
        "ago, so a KV cache that drops tokens should keep all of theirs.",
    ),
    Label(
        "induction",
        ("induction_probe", "induction"),
        0.3,
        "Attends to the token after another occurrence of the current token: after A B ... A it attends to B, and so "
        "predicts that the sequence repeats. On the repeated-token probe, nothing else predicts the second half. "
        "Induction heads depend on previous-token heads in earlier layers, which write information about the previous "
        "token into each position.",
    ),
    Label(
        "duplicate",
        ("duplicate_probe", "duplicate"),
        0.3,
        "Attends to other occurrences of the same token. It marks a token as repeated and shows where it occurred. "
        "Later layers can use this, for example for names that occur twice.",
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
        "sum to one. The value vector of the first token is often small, so attention to it changes the head output "
        "little. Many heads are sinks where their own pattern does not occur: induction heads, for example, where "
        "nothing repeats.",
    ),
    Label(
        "streaming",
        ("streaming",),
        0.95,
        "Attends almost only to the first 4 and the last 256 tokens, also where the answer to a question is far back. "
        "Its KV cache can be cut to these tokens. Scored on needles in a long text.",
    ),
    Label(
        "broad",
        ("evenness",),
        0.8,
        "Spreads its attention almost evenly over all tokens that it may attend to: its entropy is close to that of "
        "uniform weights. Its output is close to the mean of their values.",
    ),
)
"""All labels, from the most specific to the least: the first label of a head describes it best."""


def get_label(name: str) -> Label:
    """Return a label by its name.

    Raises:
        SettingError: There is no such label.
    """
    for label in LABELS:
        if label.name == name:
            return label
    raise SettingError(unknown("label", name, [label.name for label in LABELS]))


def assign_labels(table: HeadTable) -> HeadTable:
    """Return a table with the labels that its scores earn.

    Args:
        table: Scores of heads. A column `NAME_error` is the standard error of the score `NAME`. NaN earns no label.

    >>> assign_labels(HeadTable(("a", "a"), (0, 1), {"sink": torch.tensor([0.9, 0.1])})).labels
    (('sink',), ('mixed',))
    """
    labels: list[list[str]] = [[] for _ in range(len(table))]
    for label in LABELS:
        score = label.find_score(table)
        if score is not None:
            errors = table.columns.get(f"{score}_error", torch.zeros(len(table)))
            for row, value, error in zip(labels, table[score].tolist(), errors.tolist(), strict=True):
                if label.applies(value, error):
                    row.append(label.name)
    return replace(table, labels=tuple(tuple(row) or (MIXED,) for row in labels))
