"""Names along a text stand where its parts begin."""

from __future__ import annotations

import random
from itertools import pairwise

from attnscope.explorer.analysis.sections import MAX_NAME_LENGTH, MAX_SECTIONS, sections

PLAY = "# Act I\n\n## Scene 1\n\nROMEO:\nIs the day so young?\nAy me!\n\nBENVOLIO: But new struck nine.\n"


def cut(text: str, seed: int) -> list[str]:
    """A text in random pieces."""
    chance, pieces, start = random.Random(seed), [], 0
    while start < len(text):
        stop = start + chance.randint(1, 7)
        pieces.append(text[start:stop])
        start = stop
    return pieces


def test_parts_have_their_importance_and_the_place_of_their_first_letter() -> None:
    assert [[PLAY[place : place + 3], importance, name] for place, importance, name in sections(list(PLAY))] == [
        ["# A", 1.0, "# Act I"],
        ["## ", 0.9, "## Scene 1"],
        ["ROM", 0.7, "ROMEO:"],
        ["Is ", 0.2, "Is the day so young?"],
        ["Ay ", 0.2, "Ay me!"],
        ["BEN", 0.7, "BENVOLIO: But new struck nine."],
    ]


def test_a_part_begins_at_the_token_that_holds_its_first_letter_however_the_text_is_cut() -> None:
    whole = sections(list(PLAY))
    for seed in range(50):
        pieces = cut(PLAY, seed)
        token_of = [token for token, piece in enumerate(pieces) for _ in piece]
        best: dict[int, tuple[float, str]] = {}
        for place, importance, name in whole:
            token = token_of[place]
            if importance > best.get(token, (0.0, ""))[0]:
                best[token] = importance, name
        assert sections(pieces) == [(token, *best[token]) for token in sorted(best)]


def test_titles_between_equals_signs_are_headings_and_equations_are_not() -> None:
    found = sections(["= Valkyria Chronicles III =\n", "\n", " = = = \n", "a = b\n", "== Plot ==\n"])
    assert [(name, importance) for _, importance, name in found] == [
        ("= Valkyria Chronicles III =", 1.0),
        ("= = =", 1.0),
        ("a = b", 0.2),
        ("== Plot ==", 0.9),
    ]


def test_a_line_that_goes_on_after_a_colon_in_lower_case_is_no_speaker() -> None:
    assert [importance for _, importance, _ in sections(["so: it is\n", "http://x\n", "Note: x\n"])] == [0.5, 0.2, 0.7]


def test_text_without_lines_is_one_part_and_nothing_is_none() -> None:
    assert sections(["one", " two"]) == [(0, 0.5, "one two")]
    assert sections([]) == sections(["", " ", "\n"]) == []


def test_names_are_short_and_few_and_those_that_are_left_are_spread() -> None:
    lines = [f"line {number} {'x' * 100}\n" for number in range(3 * MAX_SECTIONS)]
    lines[2 * MAX_SECTIONS + 1] = "# Title\n"
    found = sections(lines)
    assert len(found) == MAX_SECTIONS
    assert max(len(name) for _, _, name in found) == MAX_NAME_LENGTH
    assert (2 * MAX_SECTIONS + 1, 1.0, "# Title") in found
    places = [place for place, _, _ in found]
    assert places == sorted(places)
    assert max(after - before for before, after in pairwise(places)) <= 4


def test_a_token_of_a_megabyte_is_read_in_no_time() -> None:
    assert sections(["a b " * 2**18])[0][2] == ("a b " * 15)
