from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE

from attnscope.errors import CheckpointError
from attnscope.models.text.sentencepiece_merges import merges_from_scores


def trained(text: str, num_merges: int) -> dict[str, float]:
    """Pieces as byte-pair training finds them, the earlier the higher their score."""
    symbols, scores = list(text), {}
    for step in range(num_merges):
        pairs = Counter(left + right for left, right in pairwise(symbols))
        found = [(count, piece) for piece, count in pairs.items() if piece not in scores]
        if not found:
            break
        scores[max(found)[1]] = -float(step)
        symbols = joined_by_score(text, scores)
    return scores | {character: -1000.0 - number for number, character in enumerate(sorted(set(text)))}


def joined_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule, written plainly: join the best neighbours, the leftmost of equals, until none are left."""
    symbols = list(text)
    while True:
        pairs = [(scores[a + b], -place) for place, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            return symbols
        place = -max(pairs)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def joined_by_list(text: str, scores: dict[str, float]) -> list[str]:
    vocabulary = {piece: number for number, piece in enumerate(scores)}
    return Tokenizer(BPE(vocab=vocabulary, merges=merges_from_scores(scores))).encode(text).tokens


# Two letters, and three: repetitions and pieces that overlap with themselves are what can go wrong.
@given(st.text("ab", min_size=20, max_size=60), st.integers(1, 12), st.text("ab", max_size=40))
@settings(max_examples=300)
def test_merging_by_the_list_is_merging_by_the_scores(text, num_merges, other):
    scores = trained(text + "ab", num_merges)
    for sample in (text, other):
        assert joined_by_list(sample, scores) == joined_by_score(sample, scores)


def test_of_two_ways_that_overlap_the_left_one_is_taken():
    scores = {"ab": -1.0, "ba": -2.0, "aba": -3.0, "a": -10.0, "b": -11.0}
    assert merges_from_scores(scores) == [("a", "b"), ("b", "a"), ("ab", "a"), ("a", "ba")]
    assert joined_by_list("ababa", scores) == joined_by_score("ababa", scores)


def test_pieces_with_one_score_are_refused():
    with pytest.raises(CheckpointError, match=r"'ab' and 'ba' of the tokenizer have the same score -1\.0"):
        merges_from_scores({"a": 0.0, "b": 0.0, "ab": -1.0, "ba": -1.0})


def test_an_unused_piece_is_refused_only_if_it_could_be_made():
    scores = {"a": -2.0, "b": -3.0, "ab": -1.0, "<unused0>": -4.0}
    assert merges_from_scores(scores, unused={"<unused0>"}) == [("a", "b")]
    with pytest.raises(CheckpointError, match="'ab' as unused"):
        merges_from_scores(scores, unused={"ab"})


def test_a_piece_beyond_all_measure_is_refused() -> None:
    with pytest.raises(CheckpointError, match="a piece of 200,000 characters"):
        merges_from_scores({"a": -1.0, "a" * 200_000: -2.0})
