"""Words are what a reader would call so, however a tokenizer cuts them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from attnscope.explorer.analysis.words import word_starts
from attnscope.models import load_tokenizer

MODELS = Path(__file__).resolve().parents[2] / ".cache" / "models"


def cut(tokens: list[str]) -> list[str]:
    """Tokens joined into words."""
    return ["".join(tokens[start:stop]) for start, stop in pairwise([*word_starts(tokens), len(tokens)])]


WORDS = [
    ("To be, or not", ["To", " be", ",", " or", " not"]),
    ("don't stop", ["don't", " stop"]),
    ("a well\u2010known bird\u2019s", ["a", " well\u2010known", " bird\u2019s"]),
    ("'quoted' - dash-", ["'", "quoted", "'", " -", " dash", "-"]),
    ("snake_case 3.14", ["snake", "_", "case", " 3", ".", "14"]),
    ("cafe\u0301 nai\u0308ve", ["cafe\u0301", " nai\u0308ve"]),
    ("\u0939\u093f\u0928\u094d\u0926\u0940 text", ["\u0939\u093f\u0928\u094d\u0926\u0940", " text"]),
    ("\u6f22\u5b57\u3067\u3059 ok", ["\u6f22", "\u5b57", "\u3067\u3059", " ok"]),
    ("a\U0001f468\u200d\U0001f469b", ["a", "\U0001f468\u200d\U0001f469", "b"]),
    ("x \U0001f44d\U0001f3fd\u2764\ufe0f", ["x", " \U0001f44d\U0001f3fd", "\u2764\ufe0f"]),
    ("line\n\n  next  \n", ["line", "\n\n  next", "  \n"]),
    ("\n a", ["\n a"]),
    ("   ", ["   "]),
]


@pytest.mark.parametrize(("text", "words"), WORDS)
def test_a_word_is_a_run_of_letters_an_ideograph_or_one_sign_with_the_white_space_before_it(
    text: str, words: list[str]
) -> None:
    assert cut(list(text)) == words


def test_a_token_belongs_to_the_word_of_its_first_character_that_is_no_white_space() -> None:
    assert cut([" un", "believ", "able", "!\n", "\n", " So", '."', " a, b", "c"]) == [
        " unbelievable", "!\n", "\n So", '."', " a, b", "c",
    ]  # fmt: skip
    assert word_starts([]) == []
    assert cut(["", "a", "", "b", " c"]) == ["ab", " c"]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([" \\xf0\\x9f", "\\x98", "\\x80", "\\xf0\\x9f\\x98\\x80", "!"], [3, 1, 1]),
        (["p", "\\xc3", "\\xa9", "t", "\\xc3\\xa9", " a"], [5, 1]),
        (["\\xd0", "\\xbe\\xd0", "\\xbd", " a"], [3, 1]),
        (["\\x98", "a", "\\xff", "\\xfe"], [1, 1, 1, 1]),
        (["\\xf0\\x9f\\x91", "\\xa9", "\\xe2\\x80", "\\x8d", "\\xf0\\x9f\\x91", "\\xa7"], [6]),
    ],
    ids=["emoji", "letters", "letters across tokens", "no characters", "a joined emoji"],
)
def test_bytes_of_one_character_stay_together_and_mean_that_character(tokens: list[str], words: list[int]) -> None:
    assert [stop - start for start, stop in pairwise([*word_starts(tokens), len(tokens)])] == words


def test_words_of_tokenizers_that_write_no_white_space() -> None:
    assert cut(["[CLS]", "un", "##believ", "##able", "!", "[SEP]"]) == ["[CLS]", "un##believ##able", "!", "[SEP]"]
    assert cut(["\u0120the", "\u0120cat", "s", "\u010a", "sat"]) == ["\u0120the", "\u0120cats", "\u010asat"]
    assert cut(["\u2581the", "\u2581cat", "s"]) == ["\u2581the", "\u2581cats"]
    assert len(cut(["one", "two", "three", "four", "five", "six", "seven", "eight"])) == 8
    assert cut(["un", "believ", "able"]) == ["unbelievable"]


def test_words_of_trained_tokenizers_are_those_of_the_text() -> None:
    text = "It doesn't work: the well-known caf\u00e9 \U0001f600 closed, naturally."
    words = ["It", " doesn't", " work", ":", " the", " well-known", " caf\u00e9", " \U0001f600", " closed", ","]
    tokenizer = load_tokenizer(MODELS / "smollm2-135m")
    ids = tokenizer.encode(text)
    starts = word_starts(tokenizer.texts(ids))
    found = [tokenizer.decode(ids[start:stop]) for start, stop in pairwise([*starts, len(ids)])]
    assert found == [*words, " naturally", "."]
    tokenizer = load_tokenizer(MODELS / "minilm-l6")
    ids = tokenizer.encode("unbelievably naive hippopotamuses")
    assert len(word_starts(tokenizer.texts(ids))) == 5


@given(some.lists(some.text(max_size=6) | some.sampled_from(["\\xf0", "\\x9f\\x98", "##a", "\u0120b", "\ud800"])))
@example(["##", "\\x00", "\\x9f\\x98"])  # the space that WordPiece leaves out is between the bytes
def test_whatever_the_tokens_are_words_begin_with_the_first_and_rise(tokens: list[str]) -> None:
    starts = word_starts(tokens)
    assert starts[:1] == [0] * bool(tokens)
    assert all(one < two for one, two in pairwise(starts))
    assert all(0 <= start < len(tokens) for start in starts)
