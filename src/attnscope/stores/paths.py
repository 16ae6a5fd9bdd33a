"""Paths of a folder that is local or in an object store, with the same operations for both.

In: a path or a URL. Out: a `pathlib.Path`, or a `StorePath`, which has the methods of a `Path` that are used here.
A store replaces an object as a whole, so after a kill an object has its old content or its new content. All errors are
`OSError`s; those that may pass are raised after retries.
Does not know: what the files contain. Memory: one file.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from attnscope.atomic_files import write_atomically
from attnscope.errors import SettingError
from attnscope.extras import require
from attnscope.stores.retries import retry_access

STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci", "memory")
"""Protocols of fsspec whose files are replaced as a whole; `memory` is seen by one process only."""
LOCAL = ("file", "local")
MAX_OPEN_BYTES = 2**28
"""The limit of `StorePath.open`, which holds the content in memory."""

Result = TypeVar("Result")


class StoreError(OSError):
    """An operation on an object store has failed, also when retried."""


@dataclass(frozen=True)
class StorePath:
    """The address of an object or of a folder in an object store; folders exist while they contain objects."""

    url: str
    """Without a slash at the end."""

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> StorePath:
        return StorePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]

    def expanduser(self) -> StorePath:
        """The same address, as a `Path` without a home folder."""
        return self

    def absolute(self) -> StorePath:
        """The same address, as an absolute `Path`."""
        return self

    def exists(self) -> bool:
        """Whether there is an object, or a folder with objects."""
        return self._type() is not None

    def is_file(self) -> bool:
        """Whether there is an object."""
        return self._type() == "file"

    def is_dir(self) -> bool:
        """Whether there are objects in this folder."""
        return self._type() == "directory"

    def iterdir(self) -> Iterator[StorePath]:
        """The objects and folders in this folder."""
        with suppress(FileNotFoundError):
            entries = self._call(lambda system, path: system.ls(path, detail=False))
            yield from (self / name for entry in entries if (name := entry.rstrip("/").rpartition("/")[2]))

    def glob(self, pattern: str) -> Iterator[StorePath]:
        """The objects and folders in this folder whose names match a pattern."""
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder exists as soon as there is an object in it."""

    def read_bytes(self, max_bytes: int | None = None) -> bytes:
        """The content of an object, or its first bytes."""
        part = {} if max_bytes is None or self.size() <= max_bytes else {"start": 0, "end": max_bytes}
        content: Any = self._call(lambda system, path: system.cat_file(path, **part))
        return content

    def open(self, mode: str, /) -> io.BytesIO:
        """An object for reading, in memory."""
        assert mode == "rb", "objects are written as a whole, by write_bytes"
        size = self.size()
        if size > MAX_OPEN_BYTES:
            raise StoreError(f"{self} has {size:,} bytes, expected at most {MAX_OPEN_BYTES:,}")
        return io.BytesIO(self.read_bytes())

    def size(self) -> int:
        """The number of bytes of an object."""
        return int(self._call(lambda system, path: system.info(path))["size"] or 0)

    def write_bytes(self, content: bytes) -> None:
        """Write or replace an object."""
        self._call(lambda system, path: system.pipe_file(path, content))

    def upload(self, file: Path) -> None:
        """Write or replace an object with the content of a local file, of which only parts are in memory."""
        self._call(lambda system, path: system.put_file(str(file), path))

    def sizes(self) -> dict[str, int]:
        """The number of bytes of every object in this folder and below, by its path in the folder."""

        def find(system: AbstractFileSystem, path: str) -> dict[str, int]:
            found: Any = system.find(path, detail=True)
            return {name.removeprefix(path).lstrip("/"): int(about["size"] or 0) for name, about in found.items()}

        return self._call(find)

    def create(self, content: bytes) -> None:
        """Write an object that must not exist; a store without conditional writes may replace one written just now.

        Raises:
            FileExistsError: There is such an object, with another content.
        """

        def write(system: AbstractFileSystem, path: str) -> None:
            try:
                system.pipe_file(path, content, mode="create")
            except FileExistsError:
                if system.cat_file(path) != content:  # a repeated request may find what the first one has written
                    raise

        if self.exists():
            raise FileExistsError(str(self))
        self._call(write)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove an object."""
        try:
            self._call(lambda system, path: system.rm_file(path))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def _type(self) -> str | None:
        try:
            return self._call(lambda system, path: system.info(path))["type"]
        except FileNotFoundError:
            return None

    def _call(self, action: Callable[[AbstractFileSystem, str], Result]) -> Result:
        """Call an action with the file system and the path in it."""

        def attempt() -> Result:
            try:
                system, path = url_to_fs(self.url)
                system.invalidate_cache()  # other processes write, too
                return action(system, path)
            except (FileNotFoundError, FileExistsError, PermissionError):
                raise
            except Exception as error:  # of any kind, depending on the file system
                raise StoreError(f"{self}: {_reason(error)}") from error

        return retry_access(attempt, StoreError)


AnyPath = Path | StorePath


def to_path(place: str | Path | StorePath) -> AnyPath:
    """A path, or the address in an object store that a URL names.

    Raises:
        SettingError: Files at the URL may be incomplete after a kill, or its file system is not installed.

    >>> to_path("memory://surveys/first/") / "survey.json"
    StorePath(url='memory://surveys/first/survey.json')
    """
    if isinstance(place, StorePath) or "://" not in str(place):
        return place if isinstance(place, StorePath) else Path(place)
    url = str(place)
    protocol, _, rest = url.partition("://")
    if protocol in LOCAL:
        return Path(LocalFileSystem._strip_protocol(url))
    if protocol not in STORES or not rest.strip("/"):
        raise SettingError(
            f"expected a folder, or a URL in an object store, such as s3://BUCKET/NAME, got {url}; "
            f"supported are {', '.join(STORES[:-1])}, where a file is replaced as a whole"
        )
    if protocol in ("s3", "s3a"):
        require("s3")
    try:
        url_to_fs(url)
    except Exception as error:  # not installed, or the options of the file system are invalid
        raise SettingError(f"cannot use {url}: {_reason(error)}") from error
    return StorePath(url.rstrip("/"))


def write_file(path: AnyPath, content: bytes) -> None:
    """Write a file: it has its old content or its new content at any time, never a part of it."""
    if isinstance(path, StorePath):
        path.write_bytes(content)
    else:
        write_atomically(path, content)


def append_byte(path: AnyPath) -> int:
    """Append a byte to a file that one process at a time writes to, and return its size before."""
    if isinstance(path, StorePath):
        size = path.size() if path.exists() else 0
        path.write_bytes(b"." * (size + 1))
        return size
    with path.open("ab") as file:
        file.write(b".")
        return file.tell() - 1


def to_local_folder(folder: AnyPath, sizes: Mapping[str, int], owner: object) -> Path:
    """A local folder with some files of a folder: the folder itself, or a temporary copy that ends with its owner.

    Args:
        folder: The folder.
        sizes: The expected size of each file; of a larger one, one byte more is copied, and of a missing one, none.
        owner: The copy is removed when this object is, or when the process ends.
    """
    if not isinstance(folder, StorePath):
        return folder
    copy = Path(tempfile.mkdtemp(prefix="attnscope-store-"))
    weakref.finalize(owner, shutil.rmtree, copy, ignore_errors=True)
    for name, size in sizes.items():
        with suppress(FileNotFoundError):
            (copy / name).write_bytes((folder / name).read_bytes(size + 1))
    return copy


@contextmanager
def report_access(folder: object) -> Iterator[None]:
    """Turn errors of access to a folder into one that names it."""
    try:
        yield
    except OSError as error:
        raise SettingError(f"{folder} cannot be read: {error.strerror or error}") from error


def _reason(error: Exception) -> str:
    """An error in one line."""
    found: Any = getattr(error, "strerror", None) or error
    line = " ".join(str(found).split())
    return "".join(one if one.isprintable() else "\ufffd" for one in line) or type(error).__name__
