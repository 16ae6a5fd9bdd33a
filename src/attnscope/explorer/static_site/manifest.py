"""The parts of a site about a whole trace, and the manifest, which names every file with its checksum.

In: an open trace. Out: an archive of its texts, and `manifest.json`, which a browser reads first. Does not know:
archives of heads. Memory: the texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from attnscope.explorer.analysis.weight_report import rotary_pairs
from attnscope.explorer.handlers.base import MAX_TOKEN_LENGTH
from attnscope.explorer.library.library import Entry
from attnscope.explorer.service.guard import App
from attnscope.explorer.service.http import to_json
from attnscope.explorer.static_export.exporter import NO_MODEL, keep_heads, request_json
from attnscope.explorer.static_site.archive import ArchiveWriter, StoredFile, store_file
from attnscope.explorer.static_site.plan import HeadId

MANIFEST = "manifest.json"
"""The last file of a site."""
FORMAT = "attnscope site"
FORMAT_VERSION = 1
"""Increased when a script of an earlier version cannot read the site."""


async def write_trace(
    app: App, entry: Entry, folder: Path, heads: Sequence[HeadId]
) -> tuple[StoredFile, dict[str, Any]]:
    """Write the texts of a trace, and return what the manifest says about it."""
    axes: list[list[int | None]] = []
    numbers: dict[int, int] = {}
    with ArchiveWriter(folder, f"{entry.trace_id}/trace.bin") as archive:
        for layer in range(len(entry.trace)):
            axes.append([_add_axis(archive, entry, layer, side, numbers) for side in ("query", "key")])
        stored = archive.finish()
    opening = await request_json(app, f"{entry.trace_id}/opening")
    rotary = entry.trace.rotary
    pairs = None if rotary is None else rotary_pairs(torch.zeros(rotary.dim), rotary)
    return stored, {
        "meta": {**entry.meta(), "unmasked": None, "origin": None},
        "opening": keep_heads(opening, heads),
        "rotary": pairs and [{"dims": pair["dims"], "period": pair["period"]} for pair in pairs],
        "axes": axes,
        "index": stored.contents,
    }


def _add_axis(archive: ArchiveWriter, entry: Entry, layer: int, side: str, numbers: dict[int, int]) -> int | None:
    """Add the texts along a side of a layer, and return their number; layers of the same text share them."""
    axis = entry.axis(layer, side)
    if axis is None:
        return None
    if id(axis) not in numbers:
        number = numbers[id(axis)] = len(numbers)
        archive.add_response(f"texts {number}", to_json([text[:MAX_TOKEN_LENGTH] for text in axis.texts]))
        archive.add_response(f"sections {number}", to_json(axis.sections))
        archive.add_response(f"words {number}", to_json(axis.words))
    return numbers[id(axis)]


async def write_manifest(
    app: App,
    entry: Entry,
    folder: Path,
    heads: Sequence[HeadId],
    description: dict[str, Any],
    files: Sequence[StoredFile],
) -> StoredFile:
    """Write the manifest; with it, the site is complete."""
    session = {
        **await request_json(app, "session"),
        **NO_MODEL,
        "model": entry.trace.model,
        "traces": [entry.summary()],
        "file": {"heads": sorted(heads)},
    }
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "session": session,
        "traces": {entry.trace_id: description},
        "files": {file.name: [file.num_bytes, file.sha256] for file in files},
    }
    return store_file(folder, MANIFEST, json.dumps(manifest, separators=(",", ":")).encode())
