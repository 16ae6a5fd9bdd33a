"""The texts of tokens without their tokenizer, packed into tensors that a file can store.

In: strings, or untrusted tensors. Out: the text of each token, and its span in the whole text.
Does not know: files, tokenizers. Memory: bytes of the text and three numbers per token; strings are created on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.errors import TraceError

ENCODING, ERRORS = "utf-8", "surrogatepass"  # a string of Python may hold half a character

MAX_BYTES = 2**31  # of texts; a file may claim more without taking it on the disk

FIELDS = ("words", "word_ends", "texts", "text_ends", "spans", "has_spans")
"""The tensors of a `Shown`."""


class Strings(NamedTuple):
    """Strings as the bytes of all of them, and where each ends."""

    content: Tensor
    ends: Tensor

    @classmethod
    def pack(cls, strings: Iterable[str]) -> Strings:
        """Pack strings."""
        parts = [string.encode(ENCODING, ERRORS) for string in strings]
        content = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if any(parts) else _no_bytes()
        return cls(content, torch.tensor([len(part) for part in parts], dtype=torch.int64).cumsum(0))

    def between(self, first: int, last: int) -> list[str]:
        """The strings from one place up to another."""
        ends = [int(self.ends[first - 1]) if first else 0, *self.ends[first:last].tolist()]
        content = self.content[ends[0] : ends[-1]].numpy().tobytes()
        places = pairwise(ends)
        return [content[start - ends[0] : end - ends[0]].decode(ENCODING, ERRORS) for start, end in places]

    def check(self, count: int, where: str) -> None:
        """Raise unless these are so many strings, each of which can be read."""
        content, ends = self
        if (content.dtype, content.dim(), ends.dtype, tuple(ends.shape)) != (torch.uint8, 1, torch.int64, (count,)):
            raise TraceError(f"{where}: {tuple(ends.shape)} {ends.dtype} are not the ends of {count:,} texts")
        if content.nbytes + ends.nbytes > MAX_BYTES:
            raise TraceError(f"{where}: {len(content):,} bytes of {count:,} texts are too many; {MAX_BYTES:,} are read")
        edges = torch.cat([ends.new_zeros(1), ends])
        if int(edges[-1]) != len(content) or bool((edges[1:] < edges[:-1]).any()):
            raise TraceError(f"{where}: expected ascending ends of texts up to {len(content):,} bytes")
        starts = content[edges[edges < len(content)]]
        if bool(((starts & 0xC0) == 0x80).any()):
            raise TraceError(f"{where}: a text ends inside of a character")
        try:
            content.numpy().tobytes().decode(ENCODING, ERRORS)
        except UnicodeDecodeError as error:
            raise TraceError(f"{where}: holds bytes that are not UTF-8 text ({error})") from error


class Shown(NamedTuple):
    """The texts and spans of tokens (batch, position)."""

    words: Strings
    texts: Strings
    spans: Tensor
    """(batch, position, 2)."""
    has_spans: Tensor
    """Whether spans are known, per batch row, (batch,)."""

    def words_of(self, batch: int) -> list[str]:
        """The text of each token of a batch row."""
        rows, count = self.spans.shape[:2]
        batch = range(rows)[batch]  # also from the end
        return self.words.between(batch * count, (batch + 1) * count)

    def spans_of(self, batch: int) -> tuple[str, list[tuple[int, int]]] | None:
        """The text of a batch row and the span of each token in it, if known."""
        batch = range(len(self.spans))[batch]
        if not self.has_spans[batch]:
            return None
        return self.texts.between(batch, batch + 1)[0], [(start, end) for start, end in self.spans[batch].tolist()]

    def tensors(self) -> dict[str, Tensor]:
        """By the names of `FIELDS`."""
        return dict(zip(FIELDS, (*self.words, *self.texts, self.spans, self.has_spans), strict=True))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], shape: tuple[int, int], where: str) -> Shown:
        """From tensors that have been kept for ids of this shape, once they are checked."""
        words, word_ends, texts, text_ends, spans, has_spans = (tensors[name] for name in FIELDS)
        shown = cls(Strings(words, word_ends), Strings(texts, text_ends), spans, has_spans)
        if spans.dtype != torch.int64 or tuple(spans.shape) != (*shape, 2):
            raise TraceError(f"{where}: spans {tuple(spans.shape)} {spans.dtype} do not go with ids {shape}")
        if has_spans.dtype != torch.bool or tuple(has_spans.shape) != shape[:1]:
            raise TraceError(f"{where}: has_spans {tuple(has_spans.shape)} does not go with ids {shape}")
        shown.words.check(shape[0] * shape[1], where)
        shown.texts.check(shape[0], where)
        return shown


def _no_bytes() -> Tensor:
    return torch.zeros(0, dtype=torch.uint8)
