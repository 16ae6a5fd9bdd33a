"""Text files as training data: tokenized once into the folder of the run, and memory-mapped from then on.

In: files, and a function that makes a tokenizer for them. Out: `Data`; the last tenth of the text is for validation.
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
from attnscope.progress import report_progress
from attnscope.train.data.datasets import TextDataset, ValidationDataset
from attnscope.train.data.documents import list_files, read_documents
from attnscope.train.data.tokens import MANIFEST, Tokens, open_tokens, train_validation_split, write_tokens
from attnscope.train.recipe import Data
from attnscope.train.settings import Settings

VALIDATION_FRACTION = 0.1  # of the text
HASHED_BYTES = 2**20  # at each end of a file
TOKENS, TOKENIZER = "tokens", "tokenizer"


@dataclass(frozen=True)
class TextSources:
    """Files and folders of text, and the line that separates documents in a file, if there is one."""

    sources: Sequence[str | Path]
    separator: str | None = None

    def documents(self) -> Iterator[str]:
        """Return all documents, in order."""
        return read_documents(self.sources, separator=self.separator)

    def identity(self) -> dict[str, object]:
        """Return the names, sizes and hashes of the files, so that a run does not resume with other files."""
        return {"data": [_file_identity(file) for file in list_files(self.sources)], "separator": self.separator}

    def documents_with_progress(self, progress: Callable[[int, int], object]) -> Iterator[str]:
        """Yield all documents, and call `progress` with the characters read so far and an estimate of their total."""
        size, done = sum(file.stat().st_size for file in list_files(self.sources)), 0
        for document in self.documents():
            yield document
            done += len(document)
            progress(done, max(done, size))  # Parquet is compressed: its text is longer than the file


def make_text_data(
    texts: TextSources, make_tokenizer: Callable[[TextSources], AnyTokenizer], folder: Path, settings: Settings
) -> Data:
    """Return the training and validation data of a run, and its tokenizer."""
    if (folder / TOKENS / MANIFEST).exists():
        tokenizer = load_tokenizer(folder / TOKENIZER)
        tokens = open_tokens(folder / TOKENS, tokenizer)
    else:
        with report_progress(True, "reading the text") as progress:
            tokenizer = make_tokenizer(texts)
            tokenizer.save(folder / TOKENIZER)
            tokens = write_tokens(texts.documents_with_progress(progress), tokenizer, folder / TOKENS)
    training, validation = _split(tokens, settings.sequence_length)
    return Data(
        TextDataset(training, settings.sequence_length, seed=settings.seed),
        ValidationDataset(validation, settings.sequence_length, settings.evaluate_sequences),
        tokenizer,
    )


def _split(tokens: Tokens, length: int) -> tuple[Tokens, Tokens]:
    """Return the training and the validation tokens, each with at least one sequence and its targets."""
    if len(tokens) * VALIDATION_FRACTION >= 2:
        training, validation = train_validation_split(tokens, VALIDATION_FRACTION)
        if min(len(training), len(validation)) > length:
            return training, validation
    raise SettingError(
        f"train: expected more than {length:,} tokens, the sequence length, for training and for validation (the last "
        f"{VALIDATION_FRACTION:.0%} of the text), got {len(tokens):,} tokens in all; use more text, or a smaller "
        "--length"
    )


def _file_identity(file: Path) -> list[str | int]:
    with file.open("rb") as opened:
        size, found = file.stat().st_size, sha256(opened.read(HASHED_BYTES))
        opened.seek(max(size - HASHED_BYTES, 0))
        found.update(opened.read(HASHED_BYTES))
    return [file.name, size, found.hexdigest()]
