"""Image layouts and photos of a trace as fields of its manifest and tensors, and back.

In: layouts by submodule, photos by image; or fields and tensors of a folder, which may be hostile. Out: the other of
the two, or a `TraceError`. Does not know: files, models. Memory: the photos, and O(patches).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnscope.errors import TraceError
from attnscope.images.known_models import Layouts
from attnscope.images.layout import ABSENT, Box, Layout, PatchGrid
from attnscope.images.photo import Photo
from attnscope.models.json_fields import Fields
from attnscope.recording.files.manifest import trace_fields

MAX_LAYOUTS, MAX_ROWS, MAX_GRIDS, MAX_SPECIAL = 1_000, 10_000, 10_000, 1_000
MAX_PHOTOS, MAX_SIDE = 10_000, 2**16

LoadTensors = Callable[[list[str]], dict[str, Tensor]]


def image_tensors(layouts: Layouts, photos: Mapping[int, Photo]) -> dict[str, Tensor]:
    """The positions of all patches and the pixels of all photos, named by where they are in `image_fields`."""
    grids = {
        f"{part}.{row}.{at}": grid.positions
        for part, rows in enumerate(layouts.values())
        for row, layout in enumerate(rows)
        for at, grid in enumerate(layout.grids)
    }
    return grids | {f"photo.{at}": torch.from_numpy(photo.pixels) for at, photo in enumerate(photos.values())}


def image_fields(layouts: Layouts, photos: Mapping[int, Photo]) -> dict[str, Any]:
    """Everything but the tensors, as JSON."""
    return {
        "layouts": [
            {"part": part, "rows": [_layout_fields(layout) for layout in rows]} for part, rows in layouts.items()
        ],
        "photos": [{"image": image, "crop": list(photo.crop)} for image, photo in photos.items()],
    }


def _layout_fields(layout: Layout) -> dict[str, Any]:
    return {
        "length": layout.length,
        "can_grow": layout.can_grow,
        "special": [[name, some.start, some.stop] for name, some in layout.special.items()],
        "grids": [
            {
                "image": grid.image,
                "pixels": None if grid.pixels is None else list(grid.pixels),
                "box": list(grid.box),
            }
            for grid in layout.grids
        ],
    }


def read_images(fields: Fields, source: str, load: LoadTensors) -> tuple[Layouts, dict[int, Photo]]:
    """The layouts and photos of a manifest; `load` reads the tensors of these names."""
    parts = [trace_fields(one, source) for one in fields.array("layouts", maximum=MAX_LAYOUTS)]
    rows = [[trace_fields(row, source) for row in part.array("rows", maximum=MAX_ROWS)] for part in parts]
    grids = [
        [[trace_fields(one, source) for one in row.array("grids", maximum=MAX_GRIDS)] for row in some] for some in rows
    ]
    photos = [trace_fields(one, source) for one in fields.array("photos", maximum=MAX_PHOTOS)]
    names = [
        f"{part}.{row}.{at}"
        for part, some in enumerate(grids)
        for row, found in enumerate(some)
        for at in range(len(found))
    ]
    tensors = load([*names, *(f"photo.{at}" for at in range(len(photos)))])
    layouts = {
        part.string("part"): tuple(
            _read_layout(row, grids[at][number], [tensors[f"{at}.{number}.{k}"] for k in range(len(grids[at][number]))])
            for number, row in enumerate(rows[at])
        )
        for at, part in enumerate(parts)
    }
    found = dict(_read_photo(one, tensors[f"photo.{at}"]) for at, one in enumerate(photos))
    for one in (*parts, *photos):
        one.finish()
    return layouts, found


def _read_layout(fields: Fields, grids: list[Fields], positions: list[Tensor]) -> Layout:
    length = fields.size("length")
    special: dict[str, range] = {}
    for one in fields.array("special", maximum=MAX_SPECIAL):
        is_named = isinstance(one, list) and len(one) == 3 and isinstance(one[0], str)
        if not is_named or not all(type(end) is int and 0 <= end <= length for end in one[1:]):
            raise fields.invalid("special", one, f"a name and two positions of at most {length:,}")
        special[one[0]] = range(one[1], one[2])
    found = tuple(_read_grid(one, places, length) for one, places in zip(grids, positions, strict=True))
    layout = Layout(length, found, special, fields.flag("can_grow"))
    fields.finish()
    return layout


def _read_grid(fields: Fields, positions: Tensor, length: int) -> PatchGrid:
    if positions.dtype != torch.int64 or positions.dim() != 3 or not positions.numel():
        raise TraceError(
            f"{fields.source}: expected int64 positions (frames, rows, columns), got {positions.dtype} "
            f"{tuple(positions.shape)}"
        )
    if int(positions.min()) < ABSENT or int(positions.max()) >= length:
        raise TraceError(f"{fields.source}: expected positions of patches below {length:,}")
    pixels = None if fields.is_null("pixels") else fields.integers("pixels", minimum=1)
    if pixels is not None and len(pixels) != 2:
        raise fields.invalid("pixels", pixels, "height and width")
    size = None if pixels is None else (pixels[0], pixels[1])
    grid = PatchGrid(positions.clone(), fields.integer("image"), size, _read_box(fields, "box"))
    fields.finish()
    return grid


def _read_photo(fields: Fields, pixels: Tensor) -> tuple[int, Photo]:
    if pixels.dtype != torch.uint8 or pixels.dim() != 3 or pixels.shape[2] != 3 or not 0 < max(pixels.shape) < MAX_SIDE:
        raise TraceError(
            f"{fields.source}: expected a photo (height, width, 3) in uint8, got {pixels.dtype} {tuple(pixels.shape)}"
        )
    return fields.integer("image"), Photo(pixels.numpy(), _read_box(fields, "crop"))


def _read_box(fields: Fields, name: str) -> Box:
    ends = fields.array(name, maximum=4)
    is_box = len(ends) == 4 and all(type(end) in (int, float) and abs(end) < MAX_SIDE for end in ends)
    if not is_box or not (ends[0] < ends[2] and ends[1] < ends[3]):
        raise fields.invalid(name, ends, "left, top, right and bottom")
    return Box(*map(float, ends))
