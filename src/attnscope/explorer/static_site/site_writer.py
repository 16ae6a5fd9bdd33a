"""`SiteWriter`: writes the files of a site to its folder, each with its record, from an open trace.

In: a trace, and which file to write. Out: the finished file. Every method returns when the file is in its place; a
killed process leaves the file complete or not there. The methods must be called in a thread without an event loop, one
at a time. Does not know: which files are missing, other processes. Memory: one head, or the links of one layer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from attnscope.explorer.library.library import Library
from attnscope.explorer.service.app import make_router, read_assets
from attnscope.explorer.service.workers import WorkerPools
from attnscope.explorer.static_site.archive import StoredFile, store_file
from attnscope.explorer.static_site.head_archive import write_head
from attnscope.explorer.static_site.layer_archive import empty_scores, write_layer
from attnscope.explorer.static_site.manifest import write_manifest, write_trace
from attnscope.explorer.static_site.pages import write_pages
from attnscope.explorer.static_site.plan import HeadId
from attnscope.explorer.static_site.site_folder import SiteFolder
from attnscope.recording import Trace


def head_record(layer: int, head: int) -> str:
    """The name of the record of a head.

    >>> head_record(3, 12), layer_record(3)
    ('L003H012', 'L003')
    """
    return f"{layer_record(layer)}H{head:03}"


def layer_record(layer: int) -> str:
    """The name of the record of a layer."""
    return f"L{layer:03}"


class SiteWriter:
    """Writes files of a site.

    Args:
        trace: The trace.
        name: The name to display.
        site: Where the files go.
    """

    def __init__(self, trace: Trace, name: str, site: SiteFolder) -> None:
        self.site, self._library, self._workers = site, Library(), WorkerPools()
        self.trace_id = self._library.add(trace, name=name)
        entry = self._library.entry(self.trace_id)
        assert entry is not None, "it was added"
        self._entry = entry
        self._app = make_router(self._library, None, self._workers, assets=read_assets())

    def write_head(self, layer: int, head: int) -> StoredFile:
        """Write the archive of a head."""
        name, record = f"{self._folder(layer)}/H{head:03}.bin", head_record(layer, head)
        stopped = self._library.closing.is_set
        stored, links = asyncio.run(
            write_head(self._app, self._entry, self.site.scratch, name, layer, head, should_stop=stopped)
        )
        self.site.deliver(stored)
        self.site.save_links(record, links)
        return self.site.save_record(record, stored)

    def write_layer(self, layer: int, heads: Sequence[int]) -> StoredFile:
        """Write the archive of a layer whose published heads are finished; its contents include their scores."""
        links = [self.site.read_links(head_record(layer, head)) for head in heads]
        name = f"{self._folder(layer)}/layer.bin"
        stored, scores = asyncio.run(write_layer(self._app, self._entry, self.site.scratch, name, layer, links))
        self.site.deliver(stored)
        return self.site.save_record(
            layer_record(layer), stored._replace(contents={**stored.contents, "scores": scores})
        )

    def write_index(self, layer: int, stored: StoredFile, heads: dict[int, StoredFile]) -> list[StoredFile]:
        """Write the index of a layer; return all files of the layer in their order, without their contents."""
        contents = {name: value for name, value in stored.contents.items() if name != "scores"}
        index = {"layer": contents, "heads": {head: file.contents for head, file in heads.items()}}
        content = json.dumps(index, separators=(",", ":")).encode()
        written = store_file(self.site.scratch, f"{self._folder(layer)}/index.json", content)
        return [file._replace(contents={}) for file in (*heads.values(), stored, self.site.deliver(written))]

    def write_end(self, heads: Sequence[HeadId], scores: dict[int, Any], files: Sequence[StoredFile]) -> None:
        """Write the texts, the pages, and the manifest, which names all files, last.

        Args:
            heads: All published heads.
            scores: The scores of each layer with published heads.
            files: All archives and indexes.
        """
        for layer in range(len(self._entry.trace)):
            self._entry.scores.put(layer, scores.get(layer) or empty_scores(self._entry, layer))
        asyncio.run(self._write_end(heads, files))

    async def _write_end(self, heads: Sequence[HeadId], files: Sequence[StoredFile]) -> None:
        scratch = self.site.scratch
        texts, description = await write_trace(self._app, self._entry, scratch, heads)
        others = [texts, *write_pages(scratch, self._entry, len(heads))]
        for file in sorted(others, key=lambda file: file.name == "index.html"):  # the page that links to the others
            self.site.deliver(file)
        manifest = await write_manifest(self._app, self._entry, scratch, heads, description, [*files, *others])
        self.site.deliver(manifest)

    def close(self) -> None:
        """Cancel the file that is being written."""
        self._library.close()
        self._workers.close()

    def _folder(self, layer: int) -> str:
        return f"{self.trace_id}/L{layer:03}"
