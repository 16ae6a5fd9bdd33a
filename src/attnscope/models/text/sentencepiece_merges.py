"""SentencePiece scores to an ordered list of BPE merges.

In: pieces with their scores. Out: pairs in merge order, which give the same tokens as the scores.
Does not know: text, ids or files.
Memory: O(number of pieces * their length).

SentencePiece merges the neighbours whose joint piece has the highest score, the leftmost of equal pieces. BPE merges
the pair that is first in the list, the leftmost of equal pairs. The two differ if one piece can be made of two
different pairs that overlap, which the order of `_find_pairs` resolves, and if two pieces have the same score, which
raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from attnscope.errors import CheckpointError

MAX_PIECE_LENGTH = 1024  # real pieces have some dozen characters; every split of a piece is tried


def merges_from_scores(scores: Mapping[str, float], *, unused: Set[str] = frozenset()) -> list[tuple[str, str]]:
    """Order the merges of pieces by their scores.

    Args:
        scores: The score of each piece.
        unused: Pieces that must not result from a merge.

    Raises:
        CheckpointError: If an unused piece can result, or two pieces have the same score.

    >>> merges_from_scores({"a": -3, "b": -4, "ab": -1, "abb": -2})
    [('a', 'b'), ('ab', 'b')]
    """
    made = {piece: pairs for piece in scores if (pairs := _find_pairs(piece, scores))}
    if reachable := sorted(made.keys() & unused):
        raise CheckpointError(
            f"the tokenizer marks {reachable[0]!r} as unused although its parts are used, which is not supported"
        )
    by_score: dict[float, str] = {}
    for piece in made:
        if (other := by_score.setdefault(scores[piece], piece)) != piece:
            raise CheckpointError(
                f"the pieces {other!r} and {piece!r} of the tokenizer have the same score {scores[piece]}, so their "
                "merge order is unknown; load the tokenizer from the folder that the file was converted from"
            )
    return [pair for score in sorted(by_score, reverse=True) for pair in made[by_score[score]]]


def _find_pairs(piece: str, scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The pairs that make a piece, in merge order.

    (x, y) and (y, z) can overlap, as x y z, only if both make the piece, so it also starts with y: then (x, y), on the
    left, comes first. If each has to come before the other, x and y are repetitions of one piece; equal neighbours are
    merged from the left, which leaves the shorter repetition on the right, so the longer left part comes first.
    """
    if len(piece) > MAX_PIECE_LENGTH:
        raise CheckpointError(
            f"the tokenizer has a piece of {len(piece):,} characters; {MAX_PIECE_LENGTH:,} is the most"
        )
    pairs = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
    known = [(left, right) for left, right in pairs if left in scores and right in scores]
    return sorted(known, key=lambda pair: (not piece.startswith(pair[1]), -len(pair[0])))
