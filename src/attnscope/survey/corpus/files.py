"""The files of a corpus, local or at any URL that fsspec supports.

In: files, folders, globs and URLs. Out: every file once, with its size and a version; and any of them opened for
reading, by a URL that is valid in every process.
Does not know: the content of a file. Memory: one entry per file.
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

FORMATS = {".txt": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""The format of a file, by its suffix."""

VERSION_FIELDS = ("etag", "ETag", "mtime", "LastModified", "last_modified", "updated", "CRC", "created")
"""Names that fsspec file systems use for the version or modification time of a file."""


class CorpusFile(NamedTuple):
    """A file of a corpus."""

    url: str
    """An absolute path, or a URL with its protocol."""
    format: str
    """"text", "jsonl" or "parquet"."""
    size: int
    version: str
    """Changes whenever the file changes."""


def list_files(sources: Sequence[str]) -> list[CorpusFile]:
    """List the files of all sources: in the order of the sources, sorted by name within each, every file once.

    Args:
        sources: Files, folders (read recursively), globs and URLs. In folders and globs, other formats are skipped.

    Returns:
        The files.

    Raises:
        SettingError: A source does not exist, has no supported file, or cannot be read.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("rose.txt", "is.jsonl", "picture.png"):
    ...         _ = Path(folder, name).write_bytes(b"{}")
    ...     [(Path(source.url).name, source.format, source.size) for source in list_files([folder])]
    [('is.jsonl', 'jsonl', 2), ('rose.txt', 'text', 2)]
    """
    found: dict[str, CorpusFile] = {}
    for source in sources:
        for file in _files(source):
            found.setdefault(file.url, file)
    return list(found.values())


@contextmanager
def open_file(url: str) -> Iterator[IO[bytes]]:
    """Open a file of `list_files` for reading, in a `with` block."""
    system, path = url_to_fs(url)
    with system.open(path, "rb") as file:  # an archive closes with its `system`, so keep that alive
        yield file


def _files(source: str) -> list[CorpusFile]:
    try:
        system, path = url_to_fs(source)
        found = sorted(_entries(system, path), key=itemgetter(0))
    except (OSError, ValueError, ImportError) as error:  # not found, unknown protocol, not installed
        raise SettingError(f"survey: cannot read {source}: {error}") from error
    if not found:
        fault = f"no {', '.join(FORMATS)} file in {source}" if system.exists(path) else f"{source} not found"
        raise SettingError(f"survey: {fault}; give files, folders, globs or URLs of text")
    return [_source(system, source, path, entry) for path, entry in found]


def _entries(system: AbstractFileSystem, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The path and the entry of each file of a file, folder or glob."""
    found: Any  # a dictionary, because of `detail=True`
    if system.isfile(path):
        yield path, system.info(path)
    elif system.isdir(path):
        found = system.find(path, detail=True)
        yield from ((name, entry) for name, entry in found.items() if file_format(name) and entry["type"] == "file")
    elif any(sign in path for sign in "*?["):
        found = system.glob(path, detail=True)
        for name, entry in found.items():
            if entry["type"] == "directory":
                yield from _entries(system, name)
            elif file_format(name):
                yield name, entry


def _source(system: AbstractFileSystem, source: str, path: str, entry: Mapping[str, Any]) -> CorpusFile:
    url, size, found = _url(system, source, path), entry.get("size"), file_format(path)
    if not found:
        raise SettingError(f"survey: unsupported file type: {url} (expected {', '.join(FORMATS)})")
    if size is None:
        raise SettingError(f"survey: the size of {url} is unknown; copy it to a local disk first")
    changed = next((entry[name] for name in VERSION_FIELDS if entry.get(name) is not None), "")
    if isinstance(changed, datetime):
        changed = changed.timestamp()
    return CorpusFile(url, found, size, f"{size} {changed}")


def file_format(url: str) -> str:
    """The format of a file by its suffix, or "" if it is not supported."""
    name = url.partition("::")[0].lower()
    return next((format for suffix, format in FORMATS.items() if name.endswith(suffix)), "")


def _url(system: AbstractFileSystem, source: str, path: str) -> str:
    """A URL that opens this file in any process; for an archive, it includes the file system that contains it."""
    if isinstance(system, LocalFileSystem):
        return path
    _, chained, rest = source.partition("::")
    return f"{system.unstrip_protocol(path)}{chained}{rest}"
