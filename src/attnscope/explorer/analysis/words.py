r"""Tokens merged into words.

A word is a run of letters and digits with the apostrophes and hyphens inside it, an ideograph, or one other sign, each
with the white space before it. A token belongs to the word in which its first character that is no white space lies,
and tokens that are bytes of one character stay together.
In: token texts. Out: the first token of each word. Does not know: models. Memory: the text.

>>> word_starts(["It", " does", "n't", " work", "!", "\n"])
[0, 1, 3, 4, 5]
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

MARK = "\u0300"  # stands for all that belongs to the sign before it
JOINER = "\u200d"
LETTER = r"(?![\u3400-\u9fff\U00020000-\U0003ffff])[^\W_]"  # or digit, and no ideograph
WORD = re.compile(
    rf"\s*(?:{LETTER}(?:{LETTER}|{MARK}|['\u2019\u2010\u2011-](?={LETTER}))*|\S{MARK}*(?:{JOINER}\S{MARK}*)*)|\s+$"
)
BYTES = re.compile(r"(\s*)((?:\\x[0-9a-f]{2})+)")  # how tokenizers here write a token that is no whole character
PREFIXES = {"Ġ": " ", "▁": " ", "Ċ": "\n"}  # how vocabularies write white space
PIECE = "##"  # the prefix of WordPiece tokens that continue a word
MANY = 8  # tokens without any white space that are words by themselves


def word_starts(texts: Sequence[str]) -> list[int]:
    r"""Find the first token of each word; a token in which several words begin belongs to the first.

    >>> word_starts([r" \xf0\x9f", r"\x98\x80", " well", "-", "known"])
    [0, 2]
    """
    parts, places = _characters(_add_spaces(texts))
    text = "".join(parts)
    starts = [0, *accumulate(map(len, parts))]
    words = [found.start() for found in WORD.finditer(_with_marks(text))]
    found, last = [], -1
    for token, place in enumerate(places):
        part = parts[place]
        word = bisect_right(words, starts[place] + len(part) - len(part.lstrip())) - 1
        if word > last or not found:
            found.append(token)
            last = word
    return found


def _add_spaces(texts: Sequence[str]) -> Sequence[str]:
    """Texts with white space between words, where the vocabulary writes it in a way of its own."""
    if any(character.isspace() for text in texts for character in text):
        return texts
    if any(text[:1] in PREFIXES for text in texts):
        return [text.translate(str.maketrans(PREFIXES)) for text in texts]
    if len(texts) >= MANY or any(text.startswith(PIECE) for text in texts):
        return [text.removeprefix(PIECE) if text.startswith(PIECE) else f" {text}" for text in texts]
    return texts


def _characters(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """The text in parts, and the one in which each token begins: tokens, or the characters of those that are bytes."""
    parts: list[str] = []
    places: list[int] = []
    held = b""  # of the last part, while it may go on
    for text in texts:
        found = BYTES.fullmatch(text)
        if found is None:
            places.append(len(parts))
            parts.append(text)
            held = b""
            continue
        content = bytes.fromhex(found[2].replace("\\x", ""))
        is_continued = bool(held) and not found[1] and content[0] & 0xC0 == 0x80
        places.append(len(parts) - 1 if is_continued else len(parts))
        held = held if is_continued else b""
        for at, byte in enumerate(content):
            if held and byte & 0xC0 == 0x80:
                held += bytes([byte])
                parts[-1] = parts[-1][:-1] + _character(held)
            else:
                held = bytes([byte])
                parts.append((found[1] if not at else "") + _character(held))
    return parts, places


def _character(content: bytes) -> str:
    return content.decode("utf-8", "replace")[:1]


def _with_marks(text: str) -> str:
    """The text, as long as it was, with one mark for all that changes the sign before it."""
    marks = [one for one in set(text) if unicodedata.category(one)[0] == "M" or "\U0001f3fb" <= one <= "\U0001f3ff"]
    return text.translate({ord(one): MARK for one in marks})
