"""A tokenized corpus on disk: written once as a stream, then memory-mapped.

In: documents and a tokenizer, or a folder written before. Out: `Tokens`, any range of which can be read. The folder has
the token ids in shards (tokens-00000.bin and so on), the start of each document in documents.bin, and a manifest,
tokens.json, with the checksums of the other files. It gets its name only when it is complete.
Does not know: models, batches. Memory: O(longest document) to write (see `DocumentEncoder`), O(range) to read.
"""

from __future__ import annotations

import hashlib
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.checksums import Crc32, crc32_file, find_damaged
from attnscope.errors import CheckpointError, SettingError, VocabularyError
from attnscope.folder_lock import scratch_folder
from attnscope.models.checked_json import encode_checked_json, remove_checksum
from attnscope.models.json_fields import short_repr
from attnscope.models.json_files import read_json
from attnscope.models.text.any_tokenizer import AnyTokenizer
from attnscope.models.text.document_encoder import DocumentEncoder

FORMAT, VERSION = "attnscope tokens", 2
MANIFEST, STARTS = "tokens.json", "documents.bin"
START_TYPE = "<i8"
TYPES = {"uint16": "<u2", "uint32": "<u4"}
ADVICE = "delete the folder and write the tokens again"
_are_checked: ContextVar[bool] = ContextVar("are_checked", default=False)


class Manifest(NamedTuple):
    """The contents of tokens.json."""

    dtype: str
    shards: list[int]
    """The number of tokens of each shard."""
    documents: int
    vocab_size: int
    tokenizer: str
    """The fingerprint of the tokenizer."""
    crc32: dict[str, str]
    """The checksum of each file."""


class Tokens:
    """The concatenated tokens of documents, or a range of them; see `write_tokens` and `open_tokens`."""

    def __init__(self, shards: Sequence[np.ndarray], starts: np.ndarray, manifest: Manifest):
        self.vocab_size, self.fingerprint = manifest.vocab_size, manifest.tokenizer
        self._shards, self._starts = shards, starts
        self._borders = [0, *accumulate(len(shard) for shard in shards)]
        self._first, self._stop = 0, self._borders[-1]

    def __len__(self) -> int:
        return self._stop - self._first

    @property
    def starts(self) -> np.ndarray:
        """The start of each document, the first one at 0. The array is memory-mapped."""
        first = int(np.searchsorted(self._starts, self._first, side="right")) - 1
        stop = int(np.searchsorted(self._starts, self._stop, side="left"))
        inside = self._starts[first:stop]
        return inside if not self._first else np.maximum(inside - self._first, 0)

    def window(self, start: int, length: int) -> Tensor:
        """Return `length` tokens from `start` on, (length,), as int64.

        Args:
            start: The first token.
            length: The number of tokens.

        Returns:
            Token ids.
        """
        begin, filled = self._place(start, length), 0
        shard = bisect_right(self._borders, begin) - 1
        found = np.empty(length, np.int64)
        while filled < length:
            offset = begin + filled - self._borders[shard]
            piece = self._shards[shard][offset : offset + length - filled]
            found[filled : filled + len(piece)] = piece
            filled, shard = filled + len(piece), shard + 1
        return torch.from_numpy(found)

    def document_ids(self, start: int, length: int) -> Tensor:
        """Return the document number of each of these tokens, (length,); that of the first token is 0.

        Args:
            start: The first token.
            length: The number of tokens.

        Returns:
            Integers that rise at the start of each document.
        """
        begin = self._place(start, length)
        first, stop = np.searchsorted(self._starts, [begin, begin + length], side="left")
        numbers = np.zeros(length, np.int64)
        numbers[self._starts[first:stop] - begin] = 1
        numbers[:1] = 0
        return torch.from_numpy(numbers.cumsum())

    def part(self, start: int, stop: int) -> Tokens:
        """Return the tokens from `start` to `stop` - 1. Documents are cut at both ends.

        Args:
            start: The first token.
            stop: The token after the last one.

        Returns:
            The tokens of that range.
        """
        found = copy(self)
        found._first = self._place(start, stop - start)
        found._stop = found._first + stop - start
        return found

    def _place(self, start: int, length: int) -> int:
        """Check the bounds, and return `start` as a position in the whole corpus."""
        if start < 0 or length < 1 or start + length > len(self):
            raise SettingError(
                f"expected a range of at least one token within 0 to {len(self):,}, got {start:,} to {start + length:,}"
            )
        return self._first + start

    def __repr__(self) -> str:
        return f"Tokens({len(self):,} in {len(self.starts):,} documents, vocabulary {self.vocab_size:,})"


def train_validation_split(tokens: Tokens, validation_fraction: float) -> tuple[Tokens, Tokens]:
    """Split tokens into training and validation; the last `validation_fraction` is for validation.

    The split is moved to the nearest start of a document, unless that changes the size of the validation part by more
    than half.

    Args:
        tokens: The tokens of all documents.
        validation_fraction: The share of tokens for validation.

    Returns:
        Tokens for training, and for validation.
    """
    if not 0 < validation_fraction < 1:
        raise SettingError(f"validation_fraction must be between 0 and 1, got {validation_fraction}")
    size = round(len(tokens) * validation_fraction)
    cut = len(tokens) - size
    starts = tokens.starts
    place = int(np.searchsorted(starts, cut))
    near = [int(start) for start in starts[max(place - 1, 0) : place + 1] if abs(int(start) - cut) <= size // 2]
    cut = min((start for start in near if start > 0), key=lambda start: abs(start - cut), default=cut)
    if not 0 < cut < len(tokens):
        raise SettingError(
            f"validation_fraction {validation_fraction} of {len(tokens):,} tokens leaves one part empty; use more text"
        )
    return tokens.part(0, cut), tokens.part(cut, len(tokens))


def fingerprint(tokenizer: AnyTokenizer) -> str:
    """Return a hash of the files that a tokenizer saves."""
    found = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        for path in sorted(Path(folder).iterdir()):
            content = path.read_bytes()
            found.update(f"{path.name} {len(content)} ".encode() + content)
    return found.hexdigest()


def write_tokens(
    documents: Iterable[str],
    tokenizer: AnyTokenizer,
    folder: str | Path,
    *,
    shard_tokens: int = 2**27,
    progress: Callable[[int], object] | None = None,
) -> Tokens:
    """Tokenize documents into a new or empty folder, and open it.

    Special tokens in the text of a document are encoded as plain text. Each document is followed by the end-of-text
    token, if the tokenizer has one. A shard has at most `shard_tokens` tokens. `progress` is called with the number of
    tokens written so far.

    Args:
        documents: The texts.
        tokenizer: Makes tokens of them.
        folder: A folder that is empty or does not exist.
        shard_tokens: The largest number of tokens in a file.
        progress: Called with the number of tokens written so far.

    Returns:
        The tokens, memory-mapped.
    """
    folder = Path(folder)
    if isinstance(documents, str):
        raise SettingError("write_tokens: expected an iterable of documents, got one string; use [text]")
    if shard_tokens < 1:
        raise SettingError(f"write_tokens: expected shard_tokens of at least 1, got {shard_tokens}")
    with _scratch(folder) as scratch:
        end = np.array(sorted(tokenizer.eos_token_ids)[:1], np.int64)
        dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
        shards, plain, count = _Shards(scratch, dtype, shard_tokens), DocumentEncoder(tokenizer), 0
        with _ChecksumFile(scratch / STARTS) as starts, shards:
            for number, document in enumerate(documents):
                begin = shards.written
                for ids in _encode(document, number, plain, tokenizer.vocab_size):
                    shards.write(ids)
                if shards.written > begin:
                    shards.write(end)
                    starts.write(begin.to_bytes(8, "little"))
                    count += 1
                if progress is not None:
                    progress(shards.written)
        if not count:
            raise SettingError("write_tokens: expected at least one token, got none; an iterator can be read only once")
        checksums = {STARTS: starts.digest.hexdigest()} | shards.checksums
        found = Manifest(dtype, shards.counts, count, tokenizer.vocab_size, fingerprint(tokenizer), checksums)
        manifest = {"format": FORMAT, "version": VERSION, **found._asdict()}
        (scratch / MANIFEST).write_bytes(encode_checked_json(manifest))
    return open_tokens(folder)


@contextmanager
def skip_checksums() -> Iterator[None]:
    """Inside, `open_tokens` compares no checksums, because the first rank has just done so for all."""
    token = _are_checked.set(True)
    try:
        yield
    finally:
        _are_checked.reset(token)


def open_tokens(folder: str | Path, tokenizer: AnyTokenizer | None = None) -> Tokens:
    """Open tokens written before, after a comparison of all files with their checksums.

    Of several ranks of a run, only the first compares them.

    Args:
        folder: The folder that `write_tokens` made.
        tokenizer: If given, it must be the one that made the tokens.

    Returns:
        The tokens, memory-mapped.

    Raises:
        CheckpointError: A file is missing or damaged, or the tokens were made by another tokenizer.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise CheckpointError(f"{folder} has no {MANIFEST}; expected a folder made by write_tokens")
    manifest = _read_manifest(folder / MANIFEST)
    if tokenizer is not None and fingerprint(tokenizer) != manifest.tokenizer:
        raise CheckpointError(
            f"the tokens in {folder} were made by another tokenizer, with {manifest.vocab_size:,} ids; use that "
            "tokenizer, or write the tokens again to another folder"
        )
    shards = [
        _map_file(folder / _shard_name(number), TYPES[manifest.dtype], count)
        for number, count in enumerate(manifest.shards)
    ]
    starts = _map_file(folder / STARTS, START_TYPE, manifest.documents)
    if not _are_checked.get() and (damaged := find_damaged(folder, manifest.crc32, crc32_file)):
        raise CheckpointError(f"{folder / damaged[0]} is damaged: its checksum differs from {MANIFEST}; {ADVICE}")
    if starts[0] != 0 or not 0 <= starts[-1] < sum(manifest.shards):
        raise CheckpointError(f"{folder / STARTS} does not match {MANIFEST}; {ADVICE}")
    return Tokens(shards, starts, manifest)


class _Shards:
    """Appends tokens to shards."""

    def __init__(self, folder: Path, dtype: str, most: int):
        self.counts: list[int] = []
        self.checksums: dict[str, str] = {}
        self._folder, self._type, self._most = folder, TYPES[dtype], most
        self._file: _ChecksumFile | None = None

    @property
    def written(self) -> int:
        return sum(self.counts)

    def write(self, ids: np.ndarray) -> None:
        while len(ids):
            if self._file is None or self.counts[-1] == self._most:
                self.close()
                self._file = _ChecksumFile(self._folder / _shard_name(len(self.counts)))
                self.counts.append(0)
            piece, ids = np.split(ids, [self._most - self.counts[-1]])
            self._file.write(piece.astype(self._type).tobytes())
            self.counts[-1] += len(piece)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self.checksums[self._file.path.name] = self._file.digest.hexdigest()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.close()


class _ChecksumFile:
    """A file that is written once, and its checksum."""

    def __init__(self, path: Path):
        self.path, self.digest = path, Crc32()
        self._file = path.open("wb")

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self.digest.update(content)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> _ChecksumFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shard_name(number: int) -> str:
    return f"tokens-{number:05}.bin"


def _encode(document: str, number: int, plain: DocumentEncoder, vocab_size: int) -> Iterator[np.ndarray]:
    """Yield the ids of a document in chunks, and check that all are in the vocabulary."""
    try:
        for piece in plain.encode_chunks(document):
            ids = np.array(piece, np.int64)
            if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
                raise VocabularyError(f"expected ids below the vocab_size, {vocab_size:,}, got {ids.max():,}")
            yield ids
    except VocabularyError as error:
        raise VocabularyError(f"document {number:,}: {error}") from error


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` at the end, or removed after an error."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(
            f"write_tokens: expected a new or empty folder, got {folder}; open complete tokens with open_tokens"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    in_use = SettingError(f"write_tokens: another process is writing {folder}; wait until it ends")
    with scratch_folder(folder.parent, f".unfinished-{folder.name}-", in_use) as outer:
        scratch = outer / "tokens"  # readable for other users, unlike the outer folder
        scratch.mkdir()
        yield scratch
        if folder.exists():
            folder.rmdir()
        scratch.rename(folder)


def _read_manifest(path: Path) -> Manifest:
    found = read_json(path, advice=ADVICE)
    if found.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a manifest of tokens; {ADVICE}")
    if found.get("version") != VERSION:
        raise CheckpointError(f"{path}: expected version {VERSION}, got {short_repr(found.get('version'))}; {ADVICE}")
    found = remove_checksum(found, path, advice=ADVICE)
    del found["format"], found["version"]
    checks: dict[str, Callable[[Any], bool]] = {
        "dtype": lambda value: isinstance(value, str) and value in TYPES,
        "shards": lambda value: isinstance(value, list) and bool(value) and all(map(_is_count, value)),
        "documents": _is_count,
        "vocab_size": _is_count,
        "tokenizer": lambda value: isinstance(value, str),
        "crc32": lambda value: isinstance(value, dict) and all(isinstance(digest, str) for digest in value.values()),
    }
    wrong = [name for name, check in checks.items() if not check(found.get(name))] + sorted(found.keys() - checks)
    if wrong:
        raise CheckpointError(f"{path}: invalid {wrong[0]}: {short_repr(found.get(wrong[0]))}; {ADVICE}")
    manifest = Manifest(**found)
    if manifest.crc32.keys() != {STARTS, *map(_shard_name, range(len(manifest.shards)))}:
        raise CheckpointError(f"{path}: crc32 does not have the checksums of all files; {ADVICE}")
    return manifest


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < 2**53


def _map_file(path: Path, dtype: str, count: int) -> np.ndarray:
    """Memory-map a file of `count` numbers, after a check of its size."""
    size, expected = (path.stat().st_size if path.is_file() else None), count * np.dtype(dtype).itemsize
    if size != expected:
        found = "no file" if size is None else f"{size:,} bytes"
        raise CheckpointError(f"{path}: expected {expected:,} bytes, got {found}; {ADVICE}")
    return np.asarray(np.memmap(path, dtype, mode="r"))
