"""The files of a corpus, local or at any URL that fsspec supports.

In: files, folders, globs and URLs. Out: every file once, with its size and a version; and any of them opened for
reading, by a URL that is valid in every process. A file that cannot be accessed is an `AccessError`.
Does not know: the content of a file. Memory: one entry per file.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from attnscope.errors import SettingError
from attnscope.survey.corpus.names import escape_name, unescape_name

FORMATS = {".txt": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""The format of a file, by its suffix."""

VERSION_FIELDS = ("etag", "ETag", "mtime", "LastModified", "last_modified", "updated", "CRC", "created")
"""Names that fsspec file systems use for the version or modification time of a file."""

LOCAL = ("file://", "local://")

DAMAGED_ARCHIVE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
"""Errors about the content of an archive; all other errors of a file system are about access to it."""


class AccessError(OSError):
    """A file that is missing, not permitted, or not reachable now: this says nothing about its content."""


class CorpusFile(NamedTuple):
    """A file of a corpus."""

    url: str
    """An absolute path, or a URL with its protocol, escaped by `escape_name`."""
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
def open_file(url: str) -> Iterator[OpenFile]:
    """Open a file of `list_files` for reading, in a `with` block.

    Raises:
        AccessError: The file cannot be opened; reading from it raises the same error.
    """
    with _access(url):
        system, path = _locate(unescape_name(url))  # an archive closes with its `system`, so keep that alive
        file = system.open(path, "rb")
    with file:
        yield OpenFile(file, url)


def file_version(url: str) -> str:
    """The `CorpusFile.version` of a file now.

    Raises:
        AccessError: The file cannot be accessed.
    """
    with _access(url, damage=()):
        system, path = _locate(unescape_name(url))
        system.invalidate_cache(path)
        return _version(system.info(path))


class _LocalFiles(LocalFileSystem):
    """The local file system; a folder that cannot be listed is an error, which fsspec omits by default."""

    def walk(
        self, path: str, maxdepth: int | None = None, topdown: bool = True, on_error: Any = "raise", **kwargs: Any
    ):
        return super().walk(path, maxdepth, topdown, on_error, **kwargs)


class OpenFile(io.RawIOBase):
    """A file of any file system, opened for reading; all errors are `AccessError`."""

    def __init__(self, file: Any, url: str) -> None:
        self._file, self._url = file, url

    def read(self, size: int = -1, /) -> bytes:
        """Read at most `size` bytes, or all."""
        with _access(self._url):
            return self._file.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to an offset, and return it."""
        with _access(self._url):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The current offset."""
        return self._file.tell()

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True


@contextmanager
def _access(url: str, damage: tuple[type[Exception], ...] = DAMAGED_ARCHIVE) -> Iterator[None]:
    """Raise any error of a file system except `damage` as an `AccessError`."""
    try:
        yield
    except damage:
        raise
    except Exception as error:
        raise AccessError(f"{url} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """An error in one line."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return escape_name(" ".join(said.split())) or type(error).__name__


def _is_local(source: str) -> bool:
    """Whether a source is a path; in a path, `::` is part of a name and does not chain file systems."""
    return "://" not in source or source.startswith(LOCAL)


def _locate(source: str) -> tuple[AbstractFileSystem, str]:
    """The file system of a source, and the path in it."""
    if _is_local(source):
        return _LocalFiles(), LocalFileSystem._strip_protocol(source)
    return url_to_fs(source)


def _files(source: str) -> list[CorpusFile]:
    try:
        system, path = _locate(source)
        found = sorted(_entries(system, path), key=itemgetter(0))
    except Exception as error:  # not found, not permitted, unknown protocol, not installed
        raise SettingError(f"survey: cannot read {source}: {_reason(error)}") from error
    if not found:
        fault = f"no {', '.join(FORMATS)} file in {source}" if system.exists(path) else f"{source} not found"
        raise SettingError(f"survey: {fault}; give files, folders, globs or URLs of text")
    return [_source(system, source, path, entry) for path, entry in found]


def _entries(system: AbstractFileSystem, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The path and the entry of each file of a file, folder or glob; a folder that cannot be listed is an error."""
    found: Any = {}  # a dictionary, because of `detail=True`
    if system.isfile(path):
        yield path, system.info(path)
    elif system.isdir(path):
        found = system.find(path, detail=True)
    elif any(sign in path for sign in "*?["):
        found = system.glob(path, detail=True)
    for name, entry in found.items():
        if entry["type"] == "directory":
            yield from _entries(system, name)
        elif _format(name) and (file := _follow_link(system, name, entry))["type"] == "file":
            yield name, file


def _follow_link(system: AbstractFileSystem, path: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry of the file that a link points to; a listing describes the link itself."""
    with _access(escape_name(path)):
        return system.info(path) if entry.get("islink") else entry


def _source(system: AbstractFileSystem, source: str, path: str, entry: Mapping[str, Any]) -> CorpusFile:
    url, found = _url(system, source, path), _format(path)
    if not found:
        raise SettingError(f"survey: unsupported file type: {url} (expected {', '.join(FORMATS)})")
    if entry.get("size") is None:
        raise SettingError(f"survey: the size of {url} is unknown; copy it to a local disk first")
    return CorpusFile(url, found, entry["size"], _version(entry))


def _version(entry: Mapping[str, Any]) -> str:
    changed = next((entry[name] for name in VERSION_FIELDS if entry.get(name) is not None), "")
    if isinstance(changed, datetime):
        changed = changed.timestamp()
    return f"{entry.get('size')} {changed}"


def file_format(url: str) -> str:
    """The format of a file by its suffix, or "" if it is not supported."""
    return _format(url if _is_local(url) else url.partition("::")[0])


def _format(path: str) -> str:
    return next((format for suffix, format in FORMATS.items() if path.lower().endswith(suffix)), "")


def _url(system: AbstractFileSystem, source: str, path: str) -> str:
    """A URL that opens this file in any process; for an archive, it includes the file system that contains it."""
    if isinstance(system, LocalFileSystem):
        return escape_name(path)
    _, chained, rest = source.partition("::")
    url = system.unstrip_protocol(path)
    if "::" in url:
        raise SettingError(
            f"survey: {escape_name(url)} has '::' in its name, which only a local file may have; rename it"
        )
    return escape_name(f"{url}{chained}{rest}")
