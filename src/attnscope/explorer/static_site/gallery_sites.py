"""Reads what a gallery shows of a published site: its manifest, and the thumbnail of its most distinctive head.

In: the folder of a site, which may come from anybody. Out: a `PublishedSite`, or a `CheckpointError`.
Does not know: HTML. Memory: the manifest, and the thumbnails of one layer.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnscope.atlas import codec
from attnscope.errors import CheckpointError, ShapeError
from attnscope.explorer.static_site.manifest import FORMAT, FORMAT_VERSION
from attnscope.models.json_fields import Fields
from attnscope.models.json_files import read_json

MAX_MANIFEST_BYTES = 2**27
MAX_THUMBNAIL_BYTES = 2**25  # of all heads of a layer
TRACE_ID = re.compile(r"[0-9a-f]{16,64}")
ADVICE = "publish the site again"


class Opening(NamedTuple):
    """The most distinctive head of a site."""

    layer: int
    head: int
    """The indices that addresses have."""
    number: int
    """The number of the head in the model."""
    label: str
    codes: NDArray[np.uint8]
    """Its thumbnail, as codes of weights; 0 is masked."""


class PublishedSite(NamedTuple):
    """A site in a gallery."""

    folder: str
    model: str
    name: str
    """Of the text."""
    tokens: int
    layers: int
    heads: int
    """Published heads."""
    num_bytes: int
    opening: Opening | None


def read_site(folder: Path) -> PublishedSite | None:
    """Read a site; None if the manifest in the folder is that of something else.

    Raises:
        CheckpointError: A file is damaged, or of another version.
    """
    path = folder / "manifest.json"
    manifest = Fields(read_json(path, MAX_MANIFEST_BYTES, advice=ADVICE), source=str(path), advice=ADVICE)
    if manifest.take("format", None) != FORMAT:
        return None
    if manifest.integer("version") != FORMAT_VERSION:
        raise CheckpointError(f"{path} is of another version of AttnScope; {ADVICE}")
    session = manifest.inner("session")
    traces, heads = session.array("traces"), session.inner("file").array("heads")
    if len(traces) != 1:
        raise CheckpointError(f"{path}: expected one trace, got {len(traces)}; {ADVICE}")
    trace = Fields(traces[0], source=str(path), path="session.traces[0].", advice=ADVICE)
    sizes = [entry[0] for entry in manifest.inner("files").found.values() if isinstance(entry, list) and entry]
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise CheckpointError(f"{path}: the size of a file is not a number; {ADVICE}")
    trace_id = trace.string("trace")
    if not TRACE_ID.fullmatch(trace_id):
        raise CheckpointError(f"{path}: invalid id of a trace; {ADVICE}")
    return PublishedSite(
        folder=folder.name,
        model=str(session.take("model", None) or "a model"),
        name=trace.string("name"),
        tokens=trace.integer("tokens"),
        layers=trace.integer("layers"),
        heads=len(heads),
        num_bytes=sum(sizes) + path.stat().st_size,
        opening=_read_opening(folder, trace_id, manifest.inner("traces").inner(trace_id)),
    )


def _read_opening(folder: Path, trace_id: str, trace: Fields) -> Opening | None:
    """The most distinctive head with its thumbnail; None if the site has no scores."""
    opening = trace.inner("opening").optional_inner("opening")
    if opening is None:
        return None
    layer, head = opening.integer("layer"), opening.integer("head")
    layers = trace.inner("meta").array("layers")
    numbers: Any = layers[layer].get("numbers") if layer < len(layers) and isinstance(layers[layer], dict) else None
    if not isinstance(numbers, list) or head >= len(numbers) or not isinstance(numbers[head], int):
        raise CheckpointError(f"{trace.source}: the opening is on a head that the trace does not have; {ADVICE}")
    codes = _read_thumbnail(folder / trace_id / f"L{layer:03}", head, len(numbers))
    return Opening(layer, head, numbers[head], opening.string("label"), codes)


def _read_thumbnail(folder: Path, head: int, num_heads: int) -> NDArray[np.uint8]:
    """The codes of one head from the archive of its layer."""
    path = folder / "index.json"
    index = Fields(read_json(path, MAX_MANIFEST_BYTES, advice=ADVICE), source=str(path), advice=ADVICE)
    offset, size = index.inner("layer").inner("responses").integers("thumbs?ch=max")
    archive = folder / "layer.bin"
    try:
        with archive.open("rb") as file:
            file.seek(offset)
            body = zlib.decompressobj(wbits=31).decompress(
                file.read(min(size, MAX_THUMBNAIL_BYTES)), MAX_THUMBNAIL_BYTES
            )
        header, codes = codec.unpack(body)
    except (OSError, zlib.error, ShapeError, KeyError) as error:
        raise CheckpointError(f"{archive} is damaged or missing ({error}); {ADVICE}") from error
    if header.dtype != codec.U8LOG or header.y * num_heads != header.rows or not codes.size:
        raise CheckpointError(f"{archive}: the thumbnails are not those of {num_heads} heads; {ADVICE}")
    return codes[head * header.y : (head + 1) * header.y]
