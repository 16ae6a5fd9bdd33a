"""Tokenizes documents and splits them into passages.

In: documents, the tokenizer of the model, the settings. Out: passages that do not overlap, each with the special tokens
that the tokenizer adds to a text; or whole documents. Text that looks like a special token is tokenized as plain text.
Does not know: files, models. Memory: the document, some of its tokens (see `DocumentEncoder`) and one passage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from attnscope.errors import CheckpointError, SettingError, UnsupportedError, VocabularyError
from attnscope.models.text.any_tokenizer import AnyTokenizer
from attnscope.models.text.document_encoder import DocumentEncoder
from attnscope.survey.corpus.documents import Document
from attnscope.survey.corpus.files import file_format
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.settings import Settings

MIN_TOKENS = 2  # of a passage: a single token can attend only to itself
PROBES = ("a", "the", "1", "é")  # texts that show which special tokens a tokenizer adds


class Passage(NamedTuple):
    """A sequence of tokens that the model processes on its own."""

    ids: list[int]
    file: str
    start: int
    """Where its document starts: a byte of the file, or a row."""
    offset: int
    """The number of tokens of the same document before this passage."""


class SpecialTokens(NamedTuple):
    """The special tokens that a tokenizer adds before and after every text."""

    before: list[int]
    after: list[int]


class PassageSplitter:
    """Splits documents into passages. It copies the tokenizer, so create it once per worker.

    Args:
        tokenizer: The tokenizer of the model.
        settings: Their `max_length` is the length of a passage, with special tokens.

    Raises:
        SettingError: `max_length` has no room for a token besides the special tokens.

    >>> from attnscope.models.text.character_tokenizer import CharacterTokenizer
    >>> settings = Settings(model="", sources=("poems.txt",), max_length=3)
    >>> splitter = PassageSplitter(CharacterTokenizer.from_text("to be"), settings)
    >>> [passage.ids for passage in splitter.split([Document("to be", "poems.txt", 0)])]
    [[4, 3, 0], [1, 2]]
    """

    def __init__(self, tokenizer: AnyTokenizer, settings: Settings):
        self._plain, self._special = DocumentEncoder(tokenizer), find_special_tokens(tokenizer)
        added = len(self._special.before) + len(self._special.after)
        self._max_text_tokens = None if settings.max_length is None else settings.max_length - added
        if self._max_text_tokens is not None and self._max_text_tokens < 1:
            raise SettingError(
                f"survey: the tokenizer adds {added} special tokens to each passage, so max_length must be at least "
                f"{added + 1}, got {settings.max_length}"
            )

    def split(self, documents: Iterable[Document | Problem]) -> Iterator[Passage | Problem]:
        """Yield the passages of documents, and problems: those given, and documents that cannot be tokenized."""
        for document in documents:
            if isinstance(document, Problem):
                yield document
                continue
            offset = 0
            try:
                for ids in _split_ids(self._plain.encode_chunks(document.text), self._max_text_tokens):
                    passage = [*self._special.before, *ids, *self._special.after]
                    if len(passage) >= MIN_TOKENS:
                        yield Passage(passage, document.file, document.start, offset)
                    offset += len(ids)
            except (VocabularyError, CheckpointError) as error:
                location = f"{'row' if file_format(document.file) == 'parquet' else 'byte'} {document.start:,}"
                reason = f"is skipped from its token {offset:,} on: {error}"
                yield Problem(document.file, location, reason, len(document.text.encode("utf-8")))


def find_special_tokens(tokenizer: AnyTokenizer) -> SpecialTokens:
    """Find the special tokens that a tokenizer adds, by encoding short texts."""
    alone = tokenizer.encode("")
    if not alone:
        return SpecialTokens([], [])
    for text in PROBES:
        bare, whole = tokenizer.encode(text, add_special_tokens=False), tokenizer.encode(text)
        places = [at for at in range(len(alone) + 1) if [*alone[:at], *bare, *alone[at:]] == whole]
        if bare and len(places) == 1:
            return SpecialTokens(alone[: places[0]], alone[places[0] :])
    raise UnsupportedError(
        f"survey: cannot determine which of the {len(alone)} special tokens of this tokenizer precede a text"
    )


def _split_ids(pieces: Iterable[list[int]], size: int | None) -> Iterator[list[int]]:
    """Ids in lists of `size`, the last one shorter and never empty; a single list if `size` is None."""
    held = list[int]()
    for ids in pieces:
        held += ids
        if size is None:
            continue
        full = len(held) - len(held) % size
        yield from (held[at : at + size] for at in range(0, full, size))
        del held[:full]
    if held:
        yield held
