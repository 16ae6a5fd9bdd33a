"""Files of a corpus, wherever they lie: on the disk, or behind any address that fsspec knows.

In: files, folders, globs and addresses. Out: every file once, with its size and what changes if it does; and any of
them opened for reading, by an address that holds in every process.
Does not know: what is in a file. Memory: one entry a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from operator import itemgetter
from typing import IO, Any, NamedTuple

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from attnscope.errors import SettingError

KINDS = {".txt": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""What a file is taken for, by its suffix."""

STAMPS = (
    "etag",
    "ETag",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "CRC",
    "created",
)  # as file systems name them


class Source(NamedTuple):
    """A file of a corpus."""

    address: str
    """Where it lies: a full path, or an address with its protocol."""
    kind: str
    """"text", "jsonl" or "parquet"."""
    size: int
    stamp: str
    """Another text whenever the file is another."""


def listed(sources: Sequence[str]) -> list[Source]:
    """The files that sources stand for: sources in their order, the files of one sorted by name, each file once.

    A folder stands for all files in it and below whose kind is known, a glob for what it matches. A source that is
    not there, and one with nothing to read, is refused.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("rose.txt", "is.jsonl", "picture.png"):
    ...         _ = Path(folder, name).write_bytes(b"{}")
    ...     [(Path(source.address).name, source.kind, source.size) for source in listed([folder])]
    [('is.jsonl', 'jsonl', 2), ('rose.txt', 'text', 2)]
    """
    found: dict[str, Source] = {}
    for source in sources:
        for file in _files(source):
            found.setdefault(file.address, file)
    return list(found.values())


@contextmanager
def opened(address: str) -> Iterator[IO[bytes]]:
    """A file of `listed`, open for reading as long as the block lasts."""
    system, path = url_to_fs(address)
    with system.open(path, "rb") as file:  # an archive closes with its `system`, which is therefore held here
        yield file


def _files(source: str) -> list[Source]:
    try:
        system, path = url_to_fs(source)
        found = sorted(_entries(system, path), key=itemgetter(0))
    except (OSError, ValueError, ImportError) as error:  # fsspec's for: not there, no such protocol, not installed
        raise SettingError(f"survey: {source} cannot be read: {error}") from error
    if not found:
        there = "is not there" if not system.exists(path) else f"has no file in it that ends in {', '.join(KINDS)}"
        raise SettingError(f"survey: {source} {there}; give files, folders, globs or addresses of text")
    return [_source(system, source, path, entry) for path, entry in found]


def _entries(system: AbstractFileSystem, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The path and the entry of each file that a path stands for."""
    found: Any  # a dictionary, for `detail` is asked for
    if system.isfile(path):
        yield path, system.info(path)
    elif system.isdir(path):
        found = system.find(path, detail=True)
        yield from ((name, entry) for name, entry in found.items() if kind_of(name) and entry["type"] == "file")
    elif any(sign in path for sign in "*?["):
        found = system.glob(path, detail=True)
        for name, entry in found.items():
            if entry["type"] == "directory":
                yield from _entries(system, name)
            elif kind_of(name):
                yield name, entry


def _source(system: AbstractFileSystem, source: str, path: str, entry: Mapping[str, Any]) -> Source:
    address, size, kind = _address(system, source, path), entry.get("size"), kind_of(path)
    if not kind:
        raise SettingError(f"survey: unsupported file type: {address} (expected {', '.join(KINDS)})")
    if size is None:
        raise SettingError(f"survey: {address} does not tell how long it is; copy it to the disk first")
    changed = next((entry[name] for name in STAMPS if entry.get(name) is not None), "")
    if isinstance(changed, datetime):
        changed = changed.timestamp()
    return Source(address, kind, size, f"{size} {changed}")


def kind_of(address: str) -> str:
    """The kind of a file by its suffix, or "" where that is not known."""
    name = address.partition("::")[0].lower()
    return next((kind for suffix, kind in KINDS.items() if name.endswith(suffix)), "")


def _address(system: AbstractFileSystem, source: str, path: str) -> str:
    """What opens this file in any process: the file systems behind an archive's are named along with it."""
    if isinstance(system, LocalFileSystem):
        return path
    _, chained, behind = source.partition("::")
    return f"{system.unstrip_protocol(path)}{chained}{behind}"
