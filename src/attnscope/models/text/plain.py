"""Documents as nothing but text: "<|endoftext|>" in one of them is 13 characters, and ends nothing.

In: a tokenizer, and documents of any length. Out: their ids in pieces, which together are those of the whole.
Does not know: files. Memory: a copy of the tokenizer, and a piece at a time where it is known that cutting changes
nothing: for characters, and for byte-level BPE with GPT-2's words, as of `train_bpe`. Other tokenizers take the whole
document at once, with some hundred bytes for each of its characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from attnscope.errors import VocabularyError
from attnscope.models.text.characters import CharacterTokenizer
from attnscope.models.text.codec import Codec
from attnscope.models.text.tokenizer import Tokenizer

PIECE = 2**16
"""Characters of a piece, up to the next place where it may end."""

ANYWHERE = re.compile("")
BEFORE_SPACE = re.compile(r"(?<=\S)[ \n]")  # where each word of GPT-2's pattern ends, whatever follows


class PlainText:
    """Ids of documents, without special tokens in them or around them.

    >>> plain = PlainText(CharacterTokenizer.from_text("to be"))
    >>> list(plain.pieces("bet"))
    [[1, 2, 4]]
    """

    def __init__(self, tokenizer: Codec):
        self._border: re.Pattern[str] | None = None
        if isinstance(tokenizer, Tokenizer):
            tokenizer = deepcopy(tokenizer)  # its owner goes on to find special tokens
            tokenizer.backend.encode_special_tokens = True
            self._border = BEFORE_SPACE if _cuts_before_spaces(tokenizer.backend) else None
        elif isinstance(tokenizer, CharacterTokenizer):
            self._border = ANYWHERE
        self._tokenizer = tokenizer

    def pieces(self, text: str) -> Iterator[list[int]]:
        """The ids of a document, piece by piece; an id that ends a text is refused."""
        start = 0
        while start < len(text):
            border = None if self._border is None else self._border.search(text, start + PIECE)
            stop = len(text) if border is None else border.start()
            try:
                ids = self._tokenizer.encode(text[start:stop], special=False)
            except VocabularyError:
                self._tokenizer.encode(text, special=False)  # refuses as well, and names the place in the whole text
                raise
            ending = self._tokenizer.eos.intersection(ids)
            if ending:
                raise VocabularyError(
                    f"the document has {self._tokenizer.decode([min(ending)], special=True)!r} in it, which this "
                    "tokenizer cannot tell from the end of a text; take it out of the document"
                )
            yield ids
            start = stop


def _cuts_before_spaces(backend: Any) -> bool:
    """Whether a space after a word always begins a new one: GPT-2's pattern, and nothing before it but digits."""
    cut = {} if backend.pre_tokenizer is None else json.loads(backend.pre_tokenizer.__getstate__())
    *before, last = cut.get("pretokenizers") or [cut]
    known = last.get("type") == "ByteLevel" and last["use_regex"] and not last["add_prefix_space"]
    digits = all(step.get("type") == "Digits" for step in before)
    special = all(token.special for token in backend.get_added_tokens_decoder().values())
    return known and digits and special and backend.normalizer is None
