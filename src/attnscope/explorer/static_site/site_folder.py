"""`SiteFolder`: an unfinished site, local or in an object store, and the records of its finished files.

Files are written to a local folder first. If the site is in an object store, each is uploaded from there as a whole.
The record of an archive is written after the archive, so an archive with a record is complete. `open_site` locks the
site, and gives it its final name at the end. In: files. Out: the site. Does not know: what the files contain, except
for the links of a head, which its layer needs. Memory: one record, and the links of one head.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from attnscope.atomic_files import TEMPORARY
from attnscope.checksums import sha256_file
from attnscope.errors import SettingError
from attnscope.explorer.static_site.archive import StoredFile
from attnscope.explorer.static_site.head_archive import TokenLinks
from attnscope.explorer.static_site.manifest import MANIFEST
from attnscope.folder_lock import LOCK, in_use, scratch_folder
from attnscope.stores.lock import lock_any_folder
from attnscope.stores.paths import AnyPath, StorePath, write_file

STATE = ".publish"
"""The folder with the records, which is removed at the end."""
SETTINGS = "settings.json"
NUM_THREADS = 8  # for requests to a store, and checksums of files

Report = Callable[[str], object]


@dataclass(frozen=True)
class SiteFolder:
    """An unfinished site. Several processes may use it at the same time for different files."""

    root: AnyPath
    """Where its files are."""
    scratch: Path
    """Where they are written first; the same folder if the site is local."""

    @property
    def state(self) -> AnyPath:
        """The folder of the records."""
        return self.root / STATE

    def claim(self, settings: dict[str, Any], report: Report) -> bool:
        """Record what is being published; True if all of it is already there.

        Raises:
            SettingError: The folder has another site, or something else.
        """
        content, path = json.dumps(settings).encode(), self.state / SETTINGS
        if path.is_file():
            if path.read_bytes() != content:
                raise SettingError(
                    f"publish: {self.root} is an unfinished site of another trace, other heads or another version; "
                    "remove it, or publish to another folder"
                )
            report(f"continuing the unfinished site in {self.root}")
            return (self.root / MANIFEST).is_file()
        if isinstance(self.root, StorePath) and any(not name.startswith(LOCK) for name in self.root.sizes()):
            raise SettingError(f"publish: {self.root} exists; give another folder, or remove it")
        (self.root / MANIFEST).unlink(missing_ok=True)  # of a publication that was killed when it had no records left
        self.state.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
        return False

    def deliver(self, file: StoredFile) -> StoredFile:
        """Bring a file that has been written to its place."""
        if isinstance(self.root, StorePath):
            written = self.scratch / file.name
            (self.root / file.name).upload(written)
            written.unlink()
        return file

    def save_record(self, name: str, file: StoredFile) -> StoredFile:
        """Record that an archive is finished, and return what `find_finished` will return for it."""
        content = json.dumps(file).encode()
        write_file(self.state / f"{name}.json", content)
        return StoredFile(*json.loads(content))

    def save_links(self, name: str, links: TokenLinks) -> None:
        """Store the links of a head until its layer is finished."""
        content = io.BytesIO()
        numpy.savez(content, **links._asdict())
        write_file(self.state / f"{name}.npz", content.getvalue())

    def read_links(self, name: str) -> TokenLinks:
        """The stored links of a head."""
        with numpy.load(io.BytesIO((self.state / f"{name}.npz").read_bytes())) as saved:
            return TokenLinks(**saved)

    def list_objects(self) -> dict[str, int] | None:
        """The names and sizes of all objects; None if the site is local."""
        return self.root.sizes() if isinstance(self.root, StorePath) else None

    def find_finished(
        self, names: Sequence[str], objects: Mapping[str, int] | None
    ) -> Iterator[tuple[str, StoredFile]]:
        """The archives that are finished and intact, by the names of their records.

        The content of local files is compared with their checksums. Of objects, only the sizes are compared: a store
        does not change what it contains.

        Args:
            names: The names of records.
            objects: What `list_objects` has returned; several calls may share it.
        """
        found = names if objects is None else [name for name in names if f"{STATE}/{name}.json" in objects]
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            for name, file in zip(found, pool.map(lambda name: self._find(name, objects), found), strict=True):
                if file is not None:
                    yield name, file

    def _find(self, name: str, objects: Mapping[str, int] | None) -> StoredFile | None:
        with suppress(FileNotFoundError):
            file = StoredFile(*json.loads((self.state / f"{name}.json").read_bytes()))
            if objects is not None:
                return file if objects.get(file.name) == file.num_bytes else None
            return file if sha256_file(self.scratch / file.name) == file.sha256 else None
        return None

    def count_files(self) -> tuple[int, int]:
        """The files of a complete site, and their bytes."""
        content = (self.root / MANIFEST).read_bytes()
        files = json.loads(content)["files"].values()
        return len(files) + 1, sum(size for size, _ in files) + len(content)

    def remove_records(self) -> None:
        """Remove all records, and the settings last: until then, the same publication can be continued."""
        records = [path for path in self.state.iterdir() if path.name != SETTINGS]
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            list(pool.map(lambda path: path.unlink(missing_ok=True), records))
        (self.state / SETTINGS).unlink()
        if isinstance(self.state, Path):
            self.state.rmdir()

    def remove_temporary_files(self) -> None:
        """Remove incomplete files that killed processes have left in a local folder."""
        for path in self.scratch.rglob(TEMPORARY):
            path.unlink(missing_ok=True)


@contextmanager
def open_site(target: AnyPath, report: Report) -> Iterator[SiteFolder]:
    """Lock the unfinished site of a target, and give it its final name if the block succeeds.

    A local site is in `TARGET.part` until then. In an object store, a site without a manifest is unfinished.

    Raises:
        SettingError: The target exists, or another process writes it.
    """
    if isinstance(target, StorePath):
        prefix = f"attnscope-publish-{hashlib.sha256(str(target).encode()).hexdigest()[:16]}-"
        with (
            lock_any_folder(target),
            scratch_folder(Path(tempfile.gettempdir()), prefix, in_use(target, None)) as scratch,
        ):
            yield SiteFolder(target, scratch)
        return
    if target.exists():
        raise SettingError(f"publish: {target} exists; give another folder, or remove it")
    unfinished = target.with_name(f"{target.name}.part")
    unfinished.mkdir(parents=True, exist_ok=True)
    with lock_any_folder(unfinished, report):
        site = SiteFolder(unfinished, unfinished)
        site.remove_temporary_files()
        yield site
        site.remove_temporary_files()
    for left in unfinished.glob(f"{LOCK}*"):
        left.unlink()
    unfinished.rename(target)
