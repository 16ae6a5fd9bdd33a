"""Documents have their needles where they say, ask for each of them once, and have the requested length."""

from __future__ import annotations

import pytest

from attnscope.errors import SettingError
from attnscope.heads.needles import TOKENS_PER_NEEDLE, make_documents, token_needles, word_needles
from attnscope.models import CharacterTokenizer

TEXT = list(range(1000, 3000))
NEEDLES = token_needles(900, 12)


@pytest.mark.parametrize("length", [300, 777, 2048])
def test_needles_and_answers_are_where_the_questions_say(length: int) -> None:
    documents = make_documents(TEXT, NEEDLES, length, prefix=[901])
    assert {len(document.ids) for document in documents} == {length}
    asked = [question for document in documents for question in document.questions]
    assert sorted(question.depth for question in asked) == [(at + 0.5) / 12 for at in range(12)]
    for document in documents:
        ids = document.ids.tolist()
        assert ids[0] == 901
        for question in document.questions:
            cue, answer = NEEDLES[int(question.depth * 12)]
            assert [ids[at] for at in question.needle] == cue + answer
            assert [ids[at] for at in question.answer] == answer
            assert ids[question.answer.start - len(cue) : question.answer.start] == cue
            assert question.answer.start > document.start > question.needle.stop
            place = (question.needle.start - 1) / document.start
            assert abs(place - question.depth) < 0.1
            assert ids[question.rows[-1] - question.distance] == answer[-1] == ids[question.rows[-1] + 1]


def test_the_text_between_the_needles_is_unbroken() -> None:
    (document,) = make_documents(TEXT, NEEDLES, 2000)
    text = [token for token in document.ids[: document.start].tolist() if token >= 1000]
    assert text == TEXT[: len(text)]


def test_short_documents_have_room_for_their_needles() -> None:
    documents = make_documents(TEXT, NEEDLES, 512)
    assert len(documents) == 3
    assert max(len(document.questions) for document in documents) <= 512 // TOKENS_PER_NEEDLE
    assert len({tuple(document.ids[:20].tolist()) for document in documents}) == 3, "other parts of the text"


def test_questions_come_in_another_order_than_needles() -> None:
    (document,) = make_documents(TEXT, NEEDLES, 2000)
    order = [question.answer.start for question in document.questions]
    assert order != sorted(order)


def test_words_are_drawn_by_seed_with_a_cue_each() -> None:
    tokenizer = CharacterTokenizer("\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    first, again, other = (word_needles(tokenizer, 30, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert len({tuple(needle.cue) for needle in first}) == 30
    text = tokenizer.decode(first[0].cue + first[0].answer)
    assert text.startswith("\nThe code of the ")
    assert len(text.partition(" is ")[2].split()) == 5


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(SettingError, match="expected a text of at least"):
        make_documents(TEXT[:100], NEEDLES, 2000)
    with pytest.raises(SettingError, match="length of at least 128 tokens for these needles, got 12"):
        make_documents(TEXT, NEEDLES, 12)
    with pytest.raises(SettingError, match="vocabulary of at least 10"):
        token_needles(9, 2)
    with pytest.raises(SettingError, match="at most 400 needles"):
        word_needles(None, 401)
