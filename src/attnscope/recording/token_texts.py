"""Decodes the token ids of a trace.

In: ids, and a tokenizer of AttnScope or of transformers, or its output that was saved with a trace. Out: the text of
each token, and its span in the whole text. Does not know: models, attention. Memory: O(n); strings are created on
demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.errors import VocabularyError
from attnscope.models.text.tokenizer import Span, Tokenizer
from attnscope.recording.files.texts import Shown, Strings

INTEGERS = (torch.int64, torch.int32)


class Texts(NamedTuple):
    """Token ids (batch, position) that a submodule was called with, before the layer with the index `since` ran."""

    part: str
    ids: Tensor
    shown: Shown | None = None
    """The decoded tokens, if the trace was opened from a folder without a tokenizer."""
    since: int = 0


def as_tokenizer(tokenizer: Any) -> Any:
    """A tokenizer of transformers in the interface of `Tokenizer`; one of AttnScope is returned as it is."""
    if hasattr(tokenizer, "texts"):
        return tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _Slow(tokenizer)
    return Tokenizer(type(backend).from_str(backend.to_str()))  # a copy: ours switches padding off


class _Slow:
    """A tokenizer that can only decode."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def texts(self, ids: Sequence[int]) -> list[str]:
        return [self._tokenizer.decode([number]) for number in ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def spans_of(codec: Any, ids: Sequence[int]) -> list[tuple[int, int]] | None:
    """The span of each token in `codec.decode(ids)`; None if encoding that text gives other ids."""
    if not hasattr(codec, "offsets"):
        return None
    spans: list[Span] = codec.offsets(codec.decode(ids, skip_special_tokens=False), add_special_tokens=False)
    if [span.token for span in spans] != list(ids):
        return None
    return [(span.start, span.end) for span in spans]


def describe_tokens(codec: Any, ids: Tensor) -> Shown | None:
    """The texts and spans of all tokens, to be saved without the tokenizer; None if it does not know the ids."""
    rows = ids.tolist()
    try:
        words = [word for row in rows for word in codec.texts(row)]
        spans = [spans_of(codec, row) for row in rows]
        texts = [codec.decode(row, skip_special_tokens=False) for row in rows]
    except VocabularyError:  # ids of another vocabulary, such as audio codes
        return None
    table = torch.zeros(*ids.shape, 2, dtype=torch.int64)
    for row, found in enumerate(spans):
        if found:
            table[row] = torch.tensor(found)
    known = torch.tensor([found is not None for found in spans], dtype=torch.bool)
    return Shown(Strings.pack(words), Strings.pack(texts), table, known)
