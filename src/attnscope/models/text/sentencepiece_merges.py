"""Scores of pieces, as SentencePiece keeps them, turned into an ordered list of merges.

In: pieces with their scores. Out: pairs in the order in which they are merged, so that merging by the list gives what
merging by the scores gives.
Does not know: text, ids or files.
Memory: O(number of pieces * their length).

SentencePiece joins the two neighbours whose joint piece has the highest score, the leftmost where that is the same
piece; a list joins the pair that stands first in it, the leftmost where it is the same pair. The two differ where one
piece can be made of two different pairs that overlap, which the order of `_pairs` settles, and where two pieces have
one score, which is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from attnscope.errors import CheckpointError

LONGEST = 1024  # real pieces have some dozens; all ways to cut one are looked at


def merges_from_scores(scores: Mapping[str, float], *, unused: Set[str] = frozenset()) -> list[tuple[str, str]]:
    """The merges of pieces with scores; the `unused` pieces must be beyond their reach.

    >>> merges_from_scores({"a": -3, "b": -4, "ab": -1, "abb": -2})
    [('a', 'b'), ('ab', 'b')]
    """
    made = {piece: pairs for piece in scores if (pairs := _pairs(piece, scores))}
    if reached := sorted(made.keys() & unused):
        raise CheckpointError(
            f"the tokenizer marks {reached[0]!r} as unused though its parts are in use, and no exact way to read such "
            "a vocabulary is known"
        )
    by_score: dict[float, str] = {}
    for piece in made:
        if (other := by_score.setdefault(scores[piece], piece)) != piece:
            raise CheckpointError(
                f"the pieces {other!r} and {piece!r} of the tokenizer have the same score {scores[piece]}, so which of "
                "them is joined first is not known; load the tokenizer from the folder that the file was made from"
            )
    return [pair for score in sorted(by_score, reverse=True) for pair in made[by_score[score]]]


def _pairs(piece: str, scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The ways to make a piece of two others, in the order in which they must be tried.

    (x, y) and (y, z) can overlap, as x y z, only if both make the piece, so if it also begins with y: then (x, y), on
    the left, has to come first. Where each has to come before the other, x and y are repetitions of one piece; equal
    neighbours are joined from the left, which leaves the shorter repetition on the right, so the longer left part wins.
    """
    if len(piece) > LONGEST:
        raise CheckpointError(f"the tokenizer has a piece of {len(piece):,} characters; {LONGEST:,} is the most")
    pairs = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
    known = [(left, right) for left, right in pairs if left in scores and right in scores]
    return sorted(known, key=lambda pair: (not piece.startswith(pair[1]), -len(pair[0])))
