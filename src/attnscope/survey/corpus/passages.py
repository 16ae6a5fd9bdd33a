"""Documents as passages: as many tokens as the model reads at once.

In: documents, the tokenizer of the model, the settings. Out: windows that do not overlap, each with the tokens around
it that the tokenizer puts around a text; or documents whole. A document is nothing but text: what looks like a special
token in it is none.
Does not know: files, models. Memory: the document, a chunk of its ids (see `DocumentEncoder`) and one passage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from attnscope.errors import CheckpointError, SettingError, UnsupportedError, VocabularyError
from attnscope.models.text.any_tokenizer import AnyTokenizer
from attnscope.models.text.document_encoder import DocumentEncoder
from attnscope.survey.corpus.documents import Document
from attnscope.survey.corpus.files import kind_of
from attnscope.survey.corpus.plan import Problem
from attnscope.survey.settings import Settings

LEAST = 2  # tokens of a passage: one alone has nothing to look at but itself
PROBES = ("a", "the", "1", "é")  # texts that show what a tokenizer puts around one


class Passage(NamedTuple):
    """What the model reads at once."""

    ids: list[int]
    file: str
    start: int
    """Where its document begins: a byte of the file, or a row."""
    offset: int
    """How many tokens of the document, as far as the shard has it, come before."""


class Around(NamedTuple):
    """The special tokens before and after every text."""

    before: list[int]
    after: list[int]


class Passages:
    """Documents in, passages out: what a worker makes once, for it copies the tokenizer."""

    def __init__(self, tokenizer: AnyTokenizer, settings: Settings):
        self._plain, self._around = DocumentEncoder(tokenizer), around_text(tokenizer)
        added = len(self._around.before) + len(self._around.after)
        self._room = None if settings.window is None else settings.window - added
        if self._room is not None and self._room < 1:
            raise SettingError(
                f"survey: passages of {settings.window} tokens were asked for, but the tokenizer puts {added} around "
                f"each; give {added + 1} at least"
            )

    def of(self, documents: Iterable[Document | Problem]) -> Iterator[Passage | Problem]:
        """The passages of documents; problems are passed on, and a document that the tokenizer refuses is one."""
        for document in documents:
            if isinstance(document, Problem):
                yield document
                continue
            offset = 0
            try:
                for ids in _windows(self._plain.encode_chunks(document.text), self._room):
                    passage = [*self._around.before, *ids, *self._around.after]
                    if len(passage) >= LEAST:
                        yield Passage(passage, document.file, document.start, offset)
                    offset += len(ids)
            except (VocabularyError, CheckpointError) as error:
                place = f"{'row' if kind_of(document.file) == 'parquet' else 'byte'} {document.start:,}"
                yield Problem(document.file, place, f"is left out from its token {offset:,} on: {error}")


def passages_of(
    documents: Iterable[Document | Problem], tokenizer: AnyTokenizer, settings: Settings
) -> Iterator[Passage | Problem]:
    """The passages of documents, once; see `Passages`.

    >>> from attnscope.models.text.character_tokenizer import CharacterTokenizer
    >>> settings = Settings(model="", sources=("poems.txt",), window=3)
    >>> passages = passages_of([Document("to be", "poems.txt", 0)], CharacterTokenizer.from_text("to be"), settings)
    >>> [passage.ids for passage in passages]
    [[4, 3, 0], [1, 2]]
    """
    return Passages(tokenizer, settings).of(documents)


def around_text(tokenizer: AnyTokenizer) -> Around:
    """What a tokenizer puts around a text, as it shows around short ones."""
    alone = tokenizer.encode("")
    if not alone:
        return Around([], [])
    for text in PROBES:
        bare, whole = tokenizer.encode(text, add_special_tokens=False), tokenizer.encode(text)
        places = [at for at in range(len(alone) + 1) if [*alone[:at], *bare, *alone[at:]] == whole]
        if bare and len(places) == 1:
            return Around(alone[: places[0]], alone[places[0] :])
    raise UnsupportedError(
        f"survey: this tokenizer puts {len(alone)} tokens around a text, and it cannot be told which come before it"
    )


def _windows(pieces: Iterable[list[int]], room: int | None) -> Iterator[list[int]]:
    """Ids in portions of `room`, the last one shorter and never empty; all in one without `room`."""
    held = list[int]()
    for ids in pieces:
        held += ids
        if room is None:
            continue
        full = len(held) - len(held) % room
        yield from (held[at : at + room] for at in range(0, full, room))
        del held[:full]
    if held:
        yield held
