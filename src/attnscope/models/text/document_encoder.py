"""Documents to ids as plain text: "<|endoftext|>" in a document is 13 characters, not a special token.

In: a tokenizer, and documents of any length. Out: their ids in chunks, which together are those of the whole.
Does not know: files. Memory: a copy of the tokenizer, and one chunk if splitting does not change the ids: for
characters, and for byte-level BPE with GPT-2's pre-tokenizer, as of `train_bpe`. Other tokenizers encode the whole
document at once, with some hundred bytes per character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from attnscope.errors import VocabularyError
from attnscope.models.text.any_tokenizer import AnyTokenizer
from attnscope.models.text.character_tokenizer import CharacterTokenizer
from attnscope.models.text.tokenizer import Tokenizer

CHUNK_SIZE = 2**16
"""Characters of a chunk, which ends at the next boundary after them."""

ANYWHERE = re.compile("")
BEFORE_SPACE = re.compile(r"(?<=\S)[ \n]")  # where each word of GPT-2's pattern ends, whatever follows


class DocumentEncoder:
    """Encodes documents without special tokens in them or around them.

    >>> encoder = DocumentEncoder(CharacterTokenizer.from_text("to be"))
    >>> list(encoder.encode_chunks("bet"))
    [[1, 2, 4]]
    """

    def __init__(self, tokenizer: AnyTokenizer):
        self._boundary: re.Pattern[str] | None = None
        if isinstance(tokenizer, Tokenizer):
            tokenizer = deepcopy(tokenizer)  # the caller's copy still recognizes special tokens
            tokenizer.backend.encode_special_tokens = True
            self._boundary = BEFORE_SPACE if _splits_before_spaces(tokenizer.backend) else None
        elif isinstance(tokenizer, CharacterTokenizer):
            self._boundary = ANYWHERE
        self._tokenizer = tokenizer

    def encode_chunks(self, text: str) -> Iterator[list[int]]:
        """Encode a document, chunk by chunk.

        Raises:
            VocabularyError: If the document has an end-of-text token that the tokenizer cannot take as plain text.
        """
        start = 0
        while start < len(text):
            boundary = None if self._boundary is None else self._boundary.search(text, start + CHUNK_SIZE)
            stop = len(text) if boundary is None else boundary.start()
            try:
                ids = self._tokenizer.encode(text[start:stop], add_special_tokens=False)
            except VocabularyError:
                self._tokenizer.encode(
                    text, add_special_tokens=False
                )  # raises too, with the position in the whole text
                raise
            ends = self._tokenizer.eos_token_ids.intersection(ids)
            if ends:
                text = self._tokenizer.decode([min(ends)], skip_special_tokens=False)
                raise VocabularyError(
                    f"the document contains {text!r}, which this tokenizer always encodes as end of text; remove it "
                    "from the document"
                )
            yield ids
            start = stop


def _splits_before_spaces(backend: Any) -> bool:
    """Whether a space after a word always starts a new one: GPT-2's pre-tokenizer, with at most digits before it."""
    steps = {} if backend.pre_tokenizer is None else json.loads(backend.pre_tokenizer.__getstate__())
    *before, last = steps.get("pretokenizers") or [steps]
    known = last.get("type") == "ByteLevel" and last["use_regex"] and not last["add_prefix_space"]
    digits = all(step.get("type") == "Digits" for step in before)
    special = all(token.special for token in backend.get_added_tokens_decoder().values())
    return known and digits and special and backend.normalizer is None
