"""Files of text as data for a run: turned into tokens once, in the folder of the run, and opened from then on.

In: files, and a function that makes a tokenizer for them. Out: `Data`, of which the last tenth is for validation.
Does not know: models, the loop. Memory: see `documents` and `tokens`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from attnscope.errors import SettingError
from attnscope.models import load_tokenizer
from attnscope.models.text.any_tokenizer import AnyTokenizer
from attnscope.recording.progress import report_progress
from attnscope.train.data.datasets import TextDataset, ValidationDataset
from attnscope.train.data.documents import list_files, read_documents
from attnscope.train.data.tokens import MANIFEST, Tokens, open_tokens, train_validation_split, write_tokens
from attnscope.train.recipe import Data
from attnscope.train.settings import Settings

VALIDATION = 0.1  # of the text
LOOK = 2**20  # bytes at each end of a file by which it is recognized
TOKENS, TOKENIZER = "tokens", "tokenizer"


@dataclass(frozen=True)
class TextSources:
    """Files and folders of text, and the line that stands between documents in a file, if there is one."""

    sources: Sequence[str | Path]
    separator: str | None = None

    def documents(self) -> Iterator[str]:
        """All documents, in order."""
        return read_documents(self.sources, separator=self.separator)

    def identity(self) -> dict[str, object]:
        """What these files are, so that a run does not go on with others: names, sizes, and a hash of both ends."""
        return {"data": [_recognized(file) for file in list_files(self.sources)], "separator": self.separator}

    def followed(self, tell: Callable[[int, int], object]) -> Iterator[str]:
        """All documents, while somebody is told how many characters have been read, of about how many."""
        size, done = sum(file.stat().st_size for file in list_files(self.sources)), 0
        for document in self.documents():
            yield document
            done += len(document)
            tell(done, max(done, size))  # Parquet holds more text than bytes


def make_text_data(
    texts: TextSources, make_tokenizer: Callable[[TextSources], AnyTokenizer], folder: Path, settings: Settings
) -> Data:
    """The data of a run that learns from text."""
    if (folder / TOKENS / MANIFEST).exists():
        tokenizer = load_tokenizer(folder / TOKENIZER)
        tokens = open_tokens(folder / TOKENS, tokenizer)
    else:
        with report_progress(True, "reading the text") as tell:
            tokenizer = make_tokenizer(texts)
            tokenizer.save(folder / TOKENIZER)
            tokens = write_tokens(texts.followed(tell), tokenizer, folder / TOKENS)
    training, validation = _parts(tokens, settings.sequence_length)
    return Data(
        TextDataset(training, settings.sequence_length, seed=settings.seed),
        ValidationDataset(validation, settings.sequence_length, settings.evaluate_sequences),
        tokenizer,
    )


def _parts(tokens: Tokens, length: int) -> tuple[Tokens, Tokens]:
    """What is learned from, and what is not; each has to hold a row."""
    if len(tokens) * VALIDATION >= 2:
        training, validation = train_validation_split(tokens, VALIDATION)
        if min(len(training), len(validation)) > length:
            return training, validation
    raise SettingError(
        f"train: the text has {len(tokens):,} tokens, of which the last {VALIDATION:.0%} are kept for validation, and "
        f"rows of {length:,} were asked for; give more text, or ask for shorter rows with --length"
    )


def _recognized(file: Path) -> list[str | int]:
    with file.open("rb") as opened:
        size, found = file.stat().st_size, sha256(opened.read(LOOK))
        opened.seek(max(size - LOOK, 0))
        found.update(opened.read(LOOK))
    return [file.name, size, found.hexdigest()]
