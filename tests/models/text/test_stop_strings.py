from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.models.text.stop_strings import StopStringFilter

# Two letters make overlaps, prefixes of one another and repetitions likely.
TEXT = st.text("ab", max_size=24)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def before_first(text: str, stops: list[str]) -> str:
    """The obvious definition, over the whole text."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def streamed(chunks: Iterable[str], stops: Iterable[str]) -> list[str]:
    """What a filter passes on of the chunks, without empty strings; chunks after the stop string change nothing."""
    stop_filter = StopStringFilter(stops)
    passed = [stop_filter.add(chunk) for chunk in chunks]
    return [text for text in (*passed, stop_filter.finish()) if text]


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@given(TEXT, STOPS, st.lists(st.integers(0, 100), max_size=12))
def test_any_pieces_give_the_text_before_the_first_stop_string(text, stops, places):
    assert "".join(streamed(cut(text, places), stops)) == before_first(text, stops)


@given(TEXT, STOPS)
def test_text_comes_as_soon_as_no_continuation_can_make_it_part_of_a_stop_string(text, stops):
    stream, given_back = StopStringFilter(stops), ""
    longest = max(map(len, stops), default=0)
    for end, character in enumerate(text, start=1):
        given_back += stream.add(character)
        # What every continuation agrees on: the shortest of the answers over all that could still follow.
        answers = [
            before_first(text[:end] + tail, stops)
            for tail in ("", *(stop[k:] for stop in stops for k in range(longest)))
        ]
        assert given_back == min(answers, key=len)


@given(TEXT, STOPS)
def test_stopped_says_whether_a_stop_string_was_there(text, stops):
    stream = StopStringFilter(stops)
    for character in text:
        stream.add(character)
    stream.finish()
    assert stream.stopped == any(stop in text for stop in stops)


def test_a_stop_string_that_spans_many_pieces_is_found():
    assert streamed(["end", "<", "|", "im", "_end|", "> more"], ["<|im_end|>"]) == ["end"]


def test_a_beginning_that_comes_to_nothing_is_given_back():
    assert streamed(["a<", "|im", "_start"], ["<|im_end|>"]) == ["a", "<|im_start"]
    assert streamed(["a<|im_e"], ["<|im_end|>"]) == ["a", "<|im_e"]


def test_the_stop_string_that_begins_first_wins_even_when_another_is_complete_before_it():
    stream = StopStringFilter(["abcdef", "cd"])
    assert (stream.add("xabcd"), stream.stopped) == ("x", False)
    assert (stream.add("ef"), stream.stopped) == ("", True)
    stream = StopStringFilter(["abcdef", "cd"])
    assert [stream.add("xabcd"), stream.add("!")] == ["x", "ab"]
    stream = StopStringFilter(["abcdef", "cd"])
    assert (stream.add("xabcd"), stream.finish(), stream.stopped) == ("x", "ab", True)


def test_a_stop_string_that_is_the_beginning_of_another_stops_at_once():
    stream = StopStringFilter(["\n", "\n\n"])
    assert (stream.add("line\n"), stream.stopped) == ("line", True)


def test_nothing_passes_after_the_stop_string():
    assert streamed(["a", "b.", "c"], ["."]) == ["a", "b"]
    stream = StopStringFilter(["."])
    assert [stream.add("a."), stream.add("b"), stream.finish()] == ["a", "", ""]


def test_one_stop_string_need_not_be_in_a_list():
    assert streamed(["a stop b"], "stop") == ["a "]


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match=r"stop string.*\['a', ''\]"):
        StopStringFilter(["a", ""])
