"""Reads documents from text files and from a column of Parquet files.

In: files and folders. Out: one string for each document, in the order of the files.
Does not know: tokens. Memory: O(longest document), or a few rows of Parquet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attnscope.errors import SettingError
from attnscope.extras import import_extra, require

TEXT, PARQUET = (".txt", ".md"), ".parquet"
ROWS = 64  # of Parquet, read at a time; a row can have megabytes


def read_documents(
    sources: Sequence[str | Path], *, column: str = "text", separator: str | None = None
) -> Iterator[str]:
    r"""Yield the documents of files, in the given order, without empty ones.

    A folder is searched, with its subfolders, for .txt, .md and .parquet files, sorted by name. Each row of `column` of
    a Parquet file is a document. A text file is one document; with `separator`, lines that are equal to it separate
    documents.

    Args:
        sources: Files and folders.
        column: The column of a Parquet file that holds the text.
        separator: A line that separates documents in a text file; None reads each file as one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "poems.txt").write_bytes(b"a rose\n--\nis a rose\n")
    ...     list(read_documents([folder], separator="--"))
    ['a rose\n', 'is a rose\n']
    """
    if isinstance(sources, str | Path):
        raise SettingError(f"read_documents: expected a list of files and folders, got a path; use [{str(sources)!r}]")
    if separator is not None and ("\n" in separator or "\r" in separator):
        raise SettingError(f"read_documents: expected a separator without line breaks, got {separator!r}")
    return _documents(list_files(sources), column, separator)


def list_files(sources: Sequence[str | Path]) -> list[Path]:
    """Return all files of the sources, in order; raise if a source does not exist."""
    return [file for source in sources for file in _files(Path(source))]


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        reason = "is not a file or a folder" if source.exists() else "was not found"
        raise SettingError(f"read_documents: {source} {reason}; expected an existing file or folder")
    kinds = (*TEXT, PARQUET)
    return sorted(path for path in source.rglob("*") if path.suffix.lower() in kinds and path.is_file())


def _documents(files: Sequence[Path], column: str, separator: str | None) -> Iterator[str]:
    any_at_all = False
    for path in files:
        try:
            parquet = path.suffix.lower() == PARQUET
            for document in _rows(path, column) if parquet else _texts(path, separator):
                if document:
                    any_at_all = True
                    yield document
        except OSError as error:
            raise SettingError(f"read_documents: {path} cannot be read: {error}") from error
    if not any_at_all:
        names = ", ".join(str(path) for path in files[:3]) + (", ..." if len(files) > 3 else "")
        raise SettingError(
            f"read_documents: found no text in {names or 'the sources'}; expected files with text, or folders with "
            f"{', '.join(TEXT)} or {PARQUET} files"
        )


def _texts(path: Path, separator: str | None) -> Iterator[str]:
    """Yield the documents between the separators. In UTF-8 no character contains the byte of a line break."""
    with path.open("rb") as file:
        if separator is None:
            yield _decode(file.read(), path, 0)
            return
        border, start, lines = separator.encode("utf-8"), 0, list[bytes]()
        for line in file:
            if line.removesuffix(b"\n").removesuffix(b"\r") != border:
                lines.append(line)
                continue
            document = b"".join(lines)
            yield _decode(document, path, start)
            start += len(document) + len(line)
            lines.clear()
        yield _decode(b"".join(lines), path, start)


def _decode(content: bytes, path: Path, start: int) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(
            f"read_documents: {path} is not valid UTF-8 at byte {start + error.start:,} ({error.reason}); convert the "
            "file to UTF-8"
        ) from None


def _rows(path: Path, column: str) -> Iterator[str]:
    """Yield the rows of a column of strings, without nulls."""
    require("train", "pyarrow")
    arrow, parquet = import_extra("pyarrow"), import_extra("pyarrow.parquet")
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            if column not in schema.names:
                raise SettingError(
                    f"read_documents: {path} has no column {column!r}; its columns are {', '.join(schema.names)}"
                )
            kind = schema.field(column).type
            if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
                raise SettingError(f"read_documents: expected strings in column {column!r} of {path}, got {kind}")
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(ROWS, row_groups=[group], columns=[column]):
                    for value in batch.column(0):
                        if value.is_valid:
                            yield value.as_py()
                        row += 1
    except UnicodeDecodeError as error:
        raise SettingError(f"read_documents: row {row:,} of {path} is not valid UTF-8 ({error.reason})") from None
    except arrow.ArrowException as error:
        raise SettingError(f"read_documents: {path} is damaged or not Parquet: {error}") from error
