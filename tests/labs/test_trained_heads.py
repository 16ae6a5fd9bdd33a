"""Held-out sentences share no noun and no name with the built-in ones, and are balanced like them."""

from __future__ import annotations

from collections import Counter

import pytest

from attnscope.heads.sentences import MEN, NOUN_GROUPS, WOMEN, Sentence, agreement, coreference
from attnscope.labs.experiments.trained_heads import held_out_sentences

HELD_OUT = held_out_sentences()


def words(sentence: Sentence) -> tuple[str, str, str]:
    query, target, distractor = (sentence.text[word.start : word.end] for word in sentence[1:4])
    return query, target, distractor


@pytest.mark.parametrize(("relation", "count"), [("agreement", 32), ("coreference", 24)])
def test_target_and_distractor_swap_words_and_places(relation: str, count: int) -> None:
    sentences = HELD_OUT[relation]
    assert len({sentence.text for sentence in sentences}) == len(sentences) == count
    assert set(Counter(sentence.group for sentence in sentences).values()) == {4}
    for group in {sentence.group for sentence in sentences}:
        some = [sentence for sentence in sentences if sentence.group == group]
        assert Counter(words(one)[1] for one in some) == Counter(words(one)[2] for one in some)
        assert sum(one.target < one.distractor for one in some) == 2


def test_nouns_names_and_frames_are_new() -> None:
    nouns = {noun for *_, first, second in NOUN_GROUPS for noun in (first, second)}
    for sentence in HELD_OUT["agreement"]:
        assert not {word.removesuffix("s") for word in words(sentence)[1:]} & nouns
    for sentence in HELD_OUT["coreference"]:
        assert not set(words(sentence)[1:]) & {*WOMEN, *MEN}
    starts = {" ".join(one.text.split()[:2]) for one in (*agreement(), *coreference())}
    assert not {" ".join(one.text.split()[:2]) for some in HELD_OUT.values() for one in some} & starts
