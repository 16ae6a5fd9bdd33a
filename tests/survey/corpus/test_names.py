"""Any name on disk has one text, which every file and terminal can hold, and the text leads back to the name."""

import os

from hypothesis import given
from hypothesis import strategies as st

from attnscope.survey.corpus.names import escape_name, unescape_name


@given(st.binary())
def test_any_bytes_come_back(name: bytes) -> None:
    path = os.fsdecode(name)
    text = escape_name(path)
    assert os.fsencode(unescape_name(text)) == name
    assert text.encode("utf-8").decode("utf-8") == text
    assert len(f"a{text}a".splitlines()) == 1


@given(st.text(st.characters(), max_size=8), st.text(st.characters(), max_size=8))
def test_two_names_have_two_texts(one: str, other: str) -> None:
    assert (escape_name(one) == escape_name(other)) == (one == other)
    assert unescape_name(escape_name(one)) == one


@given(st.text(st.sampled_from("\\xu0ea9\udce9\n"), max_size=12))
def test_a_name_that_looks_escaped_comes_back(name: str) -> None:
    assert unescape_name(escape_name(name)) == name


def test_common_names_stay_as_they_are() -> None:
    for name in ("/corpus/a b.txt", "/corpus/été/日本語.md", "s3://bucket/a?b=c&d%20e"):
        assert escape_name(name) == name
