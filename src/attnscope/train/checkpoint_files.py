"""The files of one checkpoint: written with checksums, and read without running code.

    __0_0.distcp ...    the share of each rank
    .metadata           which tensor is where
    checkpoint.json     step, layout, run, and a checksum of every other file; written last

torch.distributed.checkpoint writes and reads the first two. It would unpickle anything in them: here, metadata may
contain only the classes that it consists of, and the rest only tensors and plain values.
In: a folder. Out: files, or a reader and a planner for torch. Does not know: models, the loop, which checkpoint is
loaded. Memory: one buffer, and the metadata.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from attnscope.atomic_files import write_atomically
from attnscope.checksums import crc32_file
from attnscope.errors import CheckpointError
from attnscope.models.checked_json import encode_checked_json, read_checked_json
from attnscope.models.json_fields import Fields, short_repr

MANIFEST = "checkpoint.json"
METADATA = ".metadata"
ADVICE = "the checkpoint cannot be used"


class CheckpointManifest(NamedTuple):
    """The content of checkpoint.json."""

    step: int
    tensor_parallel_size: int
    """The number of tensor-parallel ranks whose order the rows have."""
    run_id: str
    files: dict[str, str]
    """The CRC-32 of every other file."""


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write checkpoint.json to disk, so that a checkpoint is complete."""
    write_atomically(folder / MANIFEST, encode_checked_json(manifest._asdict()))


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read checkpoint.json.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    found = read_checked_json(folder / MANIFEST, advice=ADVICE)
    fields = Fields(found, source=MANIFEST, advice=ADVICE)
    files = fields.inner("files")
    manifest = CheckpointManifest(
        step=fields.integer("step"),
        tensor_parallel_size=fields.size("tensor_parallel_size"),
        run_id=fields.string("run_id"),
        files={name: files.string(name) for name in files.found},
    )
    fields.finish()
    return manifest


class ChecksumWriter(FileSystemWriter):
    """Writes a checkpoint; each rank computes the checksums of its files, and the first rank writes checkpoint.json.

    Args:
        folder: The folder, which must exist.
        manifest: The manifest, without files.
    """

    def __init__(self, folder: Path, manifest: CheckpointManifest) -> None:
        super().__init__(folder, sync_files=False)  # _sync_and_hash does
        self._folder, self._manifest = folder, manifest

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the share of this rank; the result also has its checksums."""
        try:
            written: list[WriteResult] = super().write_data(plan, planner).wait()
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None  # torch.save reports a position where the disk was full
            raise
        names = sorted({result.storage_data.relative_path for result in written})
        checksums = {name: _sync_and_hash(self._folder / name) for name in names}
        future: Future[list[WriteResult]] = Future()
        future.set_result([*written, WriteResult(MetadataIndex(MANIFEST), 0, checksums)])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata, then checkpoint.json, on the first rank."""
        files: dict[str, str] = {}
        for written in results:
            files |= written.pop().storage_data
        super().finish(metadata, results)
        files[METADATA] = _sync_and_hash(self._folder / METADATA)
        write_manifest(self._folder, self._manifest._replace(files=files))


def _sync_and_hash(path: Path) -> str:
    """Flush a file to disk, and compute its CRC-32 meanwhile."""
    with path.open("rb") as file, ThreadPoolExecutor(1) as pool:
        syncing = pool.submit(os.fsync, file.fileno())
        digest = crc32_file(path)
        syncing.result()
    return digest


class SafeReader(FileSystemReader):
    """Reads a checkpoint whose metadata contains nothing but tensors' places.

    Args:
        folder: The checkpoint.
        files: The files of its manifest; no others are opened.

    Raises:
        CheckpointError: The metadata is damaged or contains anything else.
    """

    def __init__(self, folder: Path, files: Collection[str]) -> None:
        super().__init__(folder)
        self._metadata = _read_metadata(folder / METADATA, files)

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """The metadata; torch looks for an argument `kwargs` before it reads the metadata of single ranks."""
        self._metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return self._metadata


class SafeLoadPlanner(DefaultLoadPlanner):
    """Loads values that are not tensors without unpickling anything but plain values."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load one value."""
        checked = io.BytesIO()
        torch.save(torch.load(value, weights_only=True), checked)
        checked.seek(0)
        super().load_bytes(read_item, checked)  # it would unpickle anything


def _read_metadata(path: Path, files: Collection[str]) -> Metadata:
    if not path.is_file():  # opening a named pipe would block
        raise CheckpointError(f"{METADATA} is missing")
    try:
        with path.open("rb") as file:
            metadata = MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise TypeError(type(metadata).__name__)
        places = {(place.relative_path, place.transform_descriptors) for place in metadata.storage_data.values()}
    except CheckpointError:
        raise
    except Exception as error:  # pickle raises whatever the damaged bytes lead to
        raise CheckpointError(f"{METADATA} is damaged ({type(error).__name__})") from error
    if unknown := places - {(name, None) for name in files}:
        raise CheckpointError(f"{METADATA} names {short_repr(unknown)}, which is not a file of the checkpoint")
    return metadata


class MetadataUnpickler(pickle.Unpickler):
    """Unpickles the classes that the metadata of torch.distributed.checkpoint consists of, and no others."""

    CLASSES = frozenset(
        {
            ("torch", "Size"),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
            ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
            ("torch.distributed.checkpoint.metadata", "Metadata"),
            ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
            ("torch.distributed.checkpoint.metadata", "StorageMeta"),
            ("torch.distributed.checkpoint.metadata", "TensorProperties"),
            ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
            ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
        }
    )
    UNUSED = frozenset(
        {("pathlib", "PosixPath"), ("pathlib._local", "PosixPath"), ("torch.serialization", "_get_layout")}
    )
    """Calls whose result is not used: where the checkpoint was written, and that its tensors are dense."""

    def find_class(self, module: str, name: str) -> Any:
        """The class, dtype or function of this name."""
        if (module, name) in self.UNUSED:
            return _discard
        if (module, name) in self.CLASSES or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise CheckpointError(f"{METADATA} contains {short_repr(f'{module}.{name}')}, which is not loaded")


def _discard(*_: object) -> None:
    """Stands for a call whose result is not used."""
