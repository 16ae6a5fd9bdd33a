"""The checksums of a saved model or tokenizer: a small file next to it, with the CRC-32 of each of the others.

In: a folder. Out: nothing, or a `CheckpointError` that names the file that was damaged. Checksums are computed in a
thread while another one reads the model. Folders without the file, as others write them, are not checked.
CRC-32 finds every flipped bit, and misses other damage once in 4 billion times; it costs a fraction of a cryptographic
hash, which would not stop who can write the folder either.
Does not know: what the files mean. Memory: one buffer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from attnscope.atomic_files import write_atomically
from attnscope.checksums import crc32_bytes, crc32_file
from attnscope.errors import CheckpointError
from attnscope.models.json_fields import Fields
from attnscope.models.json_files import dump_json, read_json

FILE = "attnscope-checksums.json"
VERSION = 1
ADVICE = f"Copy the folder again, or delete {FILE} to load it without checksums"


def write_checksums(folder: Path, checksums: Mapping[str, str]) -> None:
    """Write the checksums of files by their names."""
    write_atomically(folder / FILE, dump_json({"version": VERSION, "crc32": dict(checksums)}))


def write_files(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    """Write small files with their checksums; None removes a file.

    The checksums are first, so that a folder with files of two saves is refused if a process is killed in between.

    Raises:
        CheckpointError: If the folder already has checksums, and they are invalid.
    """
    others = {name: checksum for name, checksum in read_checksums(folder).items() if name not in contents}
    own = {name: crc32_bytes(content) for name, content in contents.items() if content is not None}
    write_checksums(folder, others | own)
    for name, content in contents.items():
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            (folder / name).write_bytes(content)


def read_checksums(folder: Path) -> dict[str, str]:
    """The checksums of files by their names; empty if the folder has none.

    Raises:
        CheckpointError: If the file is invalid, or of a newer version.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    fields = Fields(read_json(path), source=str(path), advice=ADVICE)
    fields.integer("version", minimum=1, maximum=VERSION)
    inner = fields.inner("crc32")
    fields.finish()
    names = list(inner.found)
    if wrong := next((name for name in names if Path(name).name != name or "\\" in name), None):
        raise fields.invalid("crc32", wrong, "the names of files in the same folder")
    return {name: inner.string(name) for name in names}


@contextmanager
def verified(folder: Path, names: Collection[str] | None = None) -> Iterator[None]:
    """Compare files of a folder with their checksums while the block reads them.

    Args:
        folder: The folder.
        names: The files, those without a checksum included; None for all.

    Raises:
        CheckpointError: At the end of the block, if a file has another checksum, also if the block has failed.
    """
    found = read_checksums(folder)
    checksums = found if names is None else {name: found[name] for name in names if name in found}
    damaged: list[str] = []
    thread = Thread(target=lambda: damaged.extend(_damaged_files(folder, checksums)), daemon=True)
    if checksums:
        thread.start()
    try:
        yield
    except Exception as error:  # which may come from the damage
        _finish(folder, thread, damaged, error)
        raise
    _finish(folder, thread, damaged, None)


def _damaged_files(folder: Path, checksums: Mapping[str, str]) -> Iterator[str]:
    for name, expected in checksums.items():
        try:
            is_intact = (folder / name).is_file() and crc32_file(folder / name) == expected
        except OSError:
            is_intact = False
        if not is_intact:
            yield name


def _finish(folder: Path, thread: Thread, damaged: list[str], cause: Exception | None) -> None:
    if thread.ident is not None:
        thread.join()
    if cause is not None:  # it says by itself what is missing
        damaged = [name for name in damaged if (folder / name).exists()]
    if damaged:
        raise CheckpointError(
            f"{folder / damaged[0]} is not the file that was saved: its checksum differs from {FILE}. {ADVICE}"
        ) from cause
