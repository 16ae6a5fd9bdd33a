"""Attention on an image as JSON: where its patches are, maps over them, and sinks.

In: a trace with image layouts, and queries or keys. Out: geometry and values per head. Values are float32 in base64,
NaN for patches that the layer does not have. Images in the first sequence of a layer are shown, as in the other views.
Does not know: servers, how patches are found. Memory: one map of all heads.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, NamedTuple

from attnscope.errors import SettingError
from attnscope.explorer.analysis.head_ranking import round_weight
from attnscope.explorer.cancellation import CancelCheck, never_cancelled
from attnscope.images import ImageAttention, Layout, PatchGrid, PatchMap
from attnscope.images.layout import ABSENT, WHOLE, Box
from attnscope.matrix import AttentionMatrix
from attnscope.recording import Trace
from attnscope.recording.files.saving import AnyLayer

KINDS = ("query", "key", "received", "rollout")
"""What a map shows: what queries attend to, what attends to keys, the mean over all queries, attention rollout."""


class StoppableLayer(NamedTuple):
    """A layer whose matrix stops computing when a request is cancelled."""

    layer: AnyLayer
    cancelled: CancelCheck

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, heads, queries, keys)."""
        return self.layer.shape

    @property
    def heads(self) -> tuple[int, ...]:
        """The indices of the heads in the model."""
        return self.layer.heads

    def matrix(self) -> AttentionMatrix:
        """Its attention matrix."""
        return self.layer.matrix().with_options(should_stop=self.cancelled)


def open_image(trace: Trace, image: int, cancelled: CancelCheck = never_cancelled) -> ImageAttention:
    """The attention of a trace on an image; raises SettingError if it has no such image."""
    layers = {name: StoppableLayer(layer, cancelled) for name, layer in trace.layers.items()}
    photo = trace.photos.get(image)
    return ImageAttention(layers, trace.image_layouts, image=image, crop=WHOLE if photo is None else photo.crop)


def list_images(trace: Trace) -> list[dict[str, Any]]:
    """The images of a trace: the layers that have patches of each, and height and width of its photo."""
    numbers = {grid.image for rows in trace.image_layouts.values() for row in rows for grid in row.grids}
    found = []
    for number in sorted(numbers):
        layers = _shown_layers(trace, number)
        if layers:
            photo = trace.photos.get(number)
            found.append(
                {"image": number, "layers": layers, "size": None if photo is None else list(photo.pixels.shape[:2])}
            )
    return found


def _shown_layers(trace: Trace, image: int) -> list[int]:
    """The indices of the layers that have the image in their first sequence."""
    try:
        found = open_image(trace, image)
    except SettingError:
        return []
    shown = {name for name in found.layers if found.row(name) == 0}
    return [place for place, name in enumerate(trace.layers) if name in shown]


def patches(image: ImageAttention, layer: str) -> dict[str, Any]:
    """Where the patches and special tokens of a layer are, among its queries and its keys."""
    found = image.layer(layer)
    return {
        side: None if layout is None else _side(layout, image)
        for side, layout in (("query", found.queries), ("key", found.keys))
    }


def _side(layout: Layout, image: ImageAttention) -> dict[str, Any] | None:
    grid = layout.grid_of(image.image)
    if grid is None:
        return None
    return {
        "grid": list(grid.shape),
        "box": _box(grid, image.crop),
        "positions": grid.positions.flatten().tolist(),
        "special": [[name, some.start, some.stop] for name, some in layout.special.items()],
    }


def _box(grid: PatchGrid, crop: Box) -> list[float]:
    return list(grid.box.inside(crop))


def make_map(image: ImageAttention, layer: str, kind: str, positions: range | None) -> dict[str, Any]:
    """A map of one kind of `KINDS` for all heads of a layer; rollout has one map for the layers up to this one."""
    if kind == "received":
        return _encode(image.received(layer))
    if positions is None:
        raise SettingError(f"a map of kind {kind} needs positions")
    if kind == "query":
        return _encode(image.attends_to(layer, positions))
    if kind == "key":
        return _encode(image.attended_by(layer, positions))
    stack = image.stack(layer)
    return _encode(image.rollout(positions, layers=stack)) | {"num_layers": len(stack)}


def _encode(found: PatchMap) -> dict[str, Any]:
    values = found.values.float().cpu().numpy().astype("<f4")
    return {
        "grid": list(found.grid),
        "heads": len(values),
        "values": base64.b64encode(values.tobytes()).decode("ascii"),
        "elsewhere": [
            [name, [round_weight(value) for value in share.tolist()]] for name, share in found.elsewhere.items()
        ],
    }


def list_sinks(image: ImageAttention, layer: str) -> list[dict[str, Any]]:
    """The positions that receive most attention in a layer: name, position, and the largest mean weight of a head."""
    return [
        {"name": sink.name, "position": sink.position, "share": round_weight(sink.share.max().item())}
        for sink in image.sinks(layer)
    ]


def name_positions(image: ImageAttention, layer: str, axis: int) -> list[str] | None:
    """Names of the queries (axis 2) or keys (3) of a layer that has no tokens: "class", "row,column" of patches.

    Each begins with a space, so that it is a word of its own.
    """
    found = image.layer(layer)
    layout = found.queries if axis == 2 else found.keys
    if layout is None:
        return None
    names = [f" token {position}" for position in range(found.matrix.shape[axis - 1])]
    for position, name in _names(layout):
        names[position] = f" {name}"
    return names


def _names(layout: Layout) -> Iterator[tuple[int, str]]:
    for name, some in layout.special.items():
        yield from ((position, name if len(some) == 1 else f"{name} {at}") for at, position in enumerate(some))
    for grid in layout.grids:
        frames = grid.shape[0]
        for place in (grid.positions != ABSENT).nonzero().tolist():
            shown = place if frames > 1 else place[1:]
            prefix = f"image {grid.image} " if len(layout.grids) > 1 else ""
            yield int(grid.positions[tuple(place)]), prefix + ",".join(map(str, shown))
