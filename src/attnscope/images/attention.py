"""`ImageAttention`: the attention of a forward pass on an image, as maps over its patches.

In: recorded layers, and the layouts of their sequences. Out: a `PatchMap` for a query, a key or a layer.
Only the rows or columns that a map shows are computed. Does not know: models, how layouts are found, drawing.
Memory: O(n) per head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from attnscope.errors import SettingError
from attnscope.images.layout import ABSENT, WHOLE, Box, Layout, PatchGrid
from attnscope.images.patch_map import Patch, PatchMap, find_patch
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.rollout import rollout

Place = int | range | str | tuple[int, ...]
"""A position, several, the name of a special token such as "class", or a patch: (row, column)."""

SINK_SHARE = 0.05
"""The mean weight from which on a position counts as a sink."""


class RecordedLayer(Protocol):
    """A layer of a trace."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, heads, queries, keys)."""
        ...

    @property
    def heads(self) -> tuple[int, ...]:
        """The indices of the heads in the model."""
        ...

    def matrix(self) -> AttentionMatrix:
        """Its attention matrix."""
        ...


class ImageLayer(NamedTuple):
    """One layer on an image: its matrix (heads, queries, keys), and the patches among queries and keys, if any."""

    name: str
    matrix: AttentionMatrix
    heads: tuple[int, ...]
    queries: Layout | None
    keys: Layout | None


class Sink(NamedTuple):
    """A position that receives much attention: its name, or its patch, and the mean weight per head."""

    name: str
    patch: Patch | None
    share: Tensor
    position: int


class ImageAttention:
    """Attention on one image.

    Args:
        layers: The recorded layers by name, as in `Trace.layers`.
        layouts: For each submodule the layouts of its sequences: one per row of its batch.
        image: The index of the image in the forward pass.
        photo: The photo, (height, width, 3), or one per frame.
        crop: The part of the photo that the model was given.
        hint: How to give the patches of layers that have no layout, for error messages.
    """

    def __init__(
        self,
        layers: Mapping[str, RecordedLayer],
        layouts: Mapping[str, Sequence[Layout]],
        *,
        image: int = 0,
        photo: np.ndarray | None = None,
        crop: Box = WHOLE,
        hint: str = "",
    ) -> None:
        self._recorded, self._layouts, self._hint = layers, layouts, hint
        self.image, self.photo, self.crop = image, photo, crop
        self.layers = [name for name in layers if self._find(name) is not None]
        if not self.layers:
            raise SettingError(f"on_image: no layer has patches of image {image}; the layers are {_list_names(layers)}")

    def layer(self, name: str | int) -> ImageLayer:
        """One layer.

        Args:
            name: The name of a layer, or an index into `layers`, those that have patches of this image.

        Raises:
            SettingError: There is no such layer, or none of its positions are patches of this image.
        """
        if isinstance(name, int):
            if not -len(self.layers) <= name < len(self.layers):
                raise SettingError(f"on_image: expected a layer from 0 to {len(self.layers) - 1}, got {name}")
            name = self.layers[name]
        found = self._find(name) if name in self._recorded else None
        if found is None:
            raise self._not_found(name)
        row, queries, keys = found
        recorded = self._recorded[name]
        return ImageLayer(name, recorded.matrix().batch(row), recorded.heads, queries, keys)

    def row(self, layer: str) -> int:
        """The row of the batch of a layer that has this image.

        Args:
            layer: The name of a layer.

        Returns:
            The index of the batch row.

        Raises:
            SettingError: None of its positions are patches of this image.
        """
        found = self._find(layer)
        if found is None:
            raise self._not_found(layer)
        return found[0]

    def stack(self, layer: str) -> list[str]:
        """The layers of the same stack up to this one, such as those of an encoder.

        Args:
            layer: The name of a layer.

        Returns:
            Names of layers, in order.

        Raises:
            SettingError: Some of them have other positions, as in an encoder whose layers attend inside of windows.
        """
        call = layer.partition("#")[2]
        before = [name for name in self.layers[: self.layers.index(layer) + 1] if _stem(name) == _stem(layer)]
        same = [
            name
            for name in before
            if name.partition("#")[2] == call and self._recorded[name].shape == self._recorded[layer].shape
        ]
        if len(same) < len({name.partition("#")[0] for name in before}):
            raise SettingError(
                f"on_image: some layers before {layer!r} have other positions, as windows do; give layers of one size"
            )
        return same

    def attends_to(self, layer: str | int, query: Place) -> PatchMap:
        """The weights of a query on the patches.

        Args:
            layer: The name of a layer, or an index into `layers`.
            query: A position, a range of positions (the mean of their weights, as for the tokens of a word), the name
                of a special token such as "class", or a patch: (row, column), or (frame, row, column) of a video.

        Returns:
            A map per head. Its values and `elsewhere` together are the whole row, which sums to 1.

        Raises:
            SettingError: The layer, the query or the patch does not exist.
        """
        found = self.layer(layer)
        rows = _resolve(query, found.queries, found.matrix.shape[-2], self.image)
        weights = sum((found.matrix[:, row, :] for row in rows), torch.zeros(())) / len(rows)
        return self._map(found, found.keys, weights, f"{_describe(query)} attends to", query)

    def attended_by(self, layer: str | int, key: Place) -> PatchMap:
        """The weight of each patch, as a query, on a key.

        Args:
            layer: The name of a layer, or an index into `layers`.
            key: As `query` of `attends_to`; the weights on several positions are summed.
        """
        found = self.layer(layer)
        columns = _resolve(key, found.keys, found.matrix.shape[-1], self.image)
        weights = sum((found.matrix[:, :, column] for column in columns), torch.zeros(()))
        shown = self._map(found, found.queries, weights, f"attends to {_describe(key)}", key)
        return replace(shown, elsewhere={})

    def received(self, layer: str | int) -> PatchMap:
        """The weight that each patch receives, as a mean over all queries.

        Args:
            layer: The name or the index of a layer.

        Returns:
            A map with one value per head and patch.
        """
        found = self.layer(layer)
        weights = found.matrix.received() / found.matrix.shape[-2]
        return self._map(found, found.keys, weights, "all queries attend to")

    def rollout(self, query: Place = "class", *, layers: Sequence[str | int] | None = None) -> PatchMap:
        """Attention rollout (Abnar & Zuidema, 2020): the share of each patch in a token of the last layer.

        Args:
            query: As in `attends_to`, a single position.
            layers: Layers of one stack, in order; by default the last layer and all those of its length before it.

        Returns:
            A map with one value per patch.

        Raises:
            SettingError: The query has several positions.
        """
        stack = [self.layer(name) for name in (self.stack(self.layers[-1]) if layers is None else layers)]
        last = stack[-1]
        rows = _resolve(query, last.queries, last.matrix.shape[-2], self.image)
        if len(rows) != 1:
            raise SettingError(f"rollout: expected one position, got {len(rows)}")
        share = rollout([one.matrix for one in stack], rows[0])[None]
        shown = self._map(last, last.keys, share, f"rollout of {_describe(query)}, {len(stack)} layers", query)
        return replace(shown, heads=(), quantity="share (attention rollout)")

    def sinks(self, layer: str | int, *, share: float = SINK_SHARE) -> list[Sink]:
        """The positions that receive at least this mean weight in a head, the strongest first.

        Args:
            layer: The name of a layer, or an index into `layers`.
            share: The mean weight over all queries.

        Returns:
            Special tokens by name, patches of this image by place, and other tokens as "token 7".
        """
        found = self.layer(layer)
        layout, grid = self._side(found, found.keys)
        mean = found.matrix.received() / found.matrix.shape[-2]
        strongest = mean.amax(0)
        sinks = []
        for position in strongest.argsort(descending=True).tolist():
            if strongest[position] < share:
                break
            name, patch = _name_of(position, layout, grid)
            sinks.append(Sink(name, patch, mean[:, position], position))
        return sinks

    def _not_found(self, layer: str) -> SettingError:
        hint = f"; {self._hint}" if self._hint else ""
        return SettingError(f"on_image: layer {layer!r} has no patches of image {self.image}{hint}")

    def _find(self, name: str) -> tuple[int, Layout | None, Layout | None] | None:
        """The row of the batch that has this image, and the layouts of the queries and keys of a layer."""
        parts = [part for part in self._layouts if not part or name.startswith(f"{part}.") or name == part]
        if not parts:
            return None
        layouts = self._layouts[max(parts, key=len)]
        row = next((at for at, layout in enumerate(layouts) if layout.grid_of(self.image) is not None), None)
        if row is None or self._recorded[name].shape[0] != len(layouts):
            return None
        queries, keys = (self._layout_of_side(name, layouts[row], axis) for axis in (-2, -1))
        if all(side is None or side.grid_of(self.image) is None for side in (queries, keys)):
            return None
        return row, queries, keys

    def _layout_of_side(self, name: str, layout: Layout, axis: int) -> Layout | None:
        """The layout of the queries (axis -2) or keys (-1) of a layer.

        A module that reads a packed sequence part by part has the calls `name`, `name#2`, ..., in order.
        """
        length = self._recorded[name].shape[axis]
        stem, _, number = name.partition("#")
        if not number and layout.fits(length):
            return layout
        calls = [other for other in self._recorded if other.partition("#")[0] == stem]
        lengths = [self._recorded[other].shape[axis] for other in calls]
        if sum(lengths) != layout.length:
            return None
        start = sum(lengths[: calls.index(name)])
        return layout.part(start, start + length)

    def _side(self, layer: ImageLayer, layout: Layout | None) -> tuple[Layout, PatchGrid]:
        grid = None if layout is None else layout.grid_of(self.image)
        if layout is None or grid is None:
            side = "queries" if layout is layer.queries else "keys"
            raise SettingError(f"on_image: the {side} of layer {layer.name!r} are not patches of image {self.image}")
        return layout, grid

    def _map(
        self, layer: ImageLayer, layout: Layout | None, weights: Tensor, title: str, place: Place | None = None
    ) -> PatchMap:
        """The weights (heads, positions) of the positions of a layout."""
        layout, grid = self._side(layer, layout)
        values = weights[:, grid.positions.clamp(min=0).to(weights.device)]
        return PatchMap(
            values.masked_fill((grid.positions == ABSENT).to(values.device), torch.nan),
            layer.heads,
            grid.box.inside(self.crop),
            {name: weights[:, others].sum(-1) for name, others in _others(layout, grid, weights.shape[-1]).items()},
            title=f"{layer.name}: {title}",
            photo=self.photo,
            marked=(find_patch(place, grid.shape),) if isinstance(place, tuple) else (),
        )


def _others(layout: Layout, grid: PatchGrid, count: int) -> dict[str, Tensor]:
    """All positions but the patches of a grid, by name."""
    named = {name: torch.tensor(list(some)) for name, some in layout.special.items()}
    named |= {
        f"image {other.image}": other.positions[other.positions != ABSENT]
        for other in layout.grids
        if other is not grid
    }
    is_left = torch.ones(count, dtype=torch.bool)
    for positions in (*named.values(), grid.positions[grid.positions != ABSENT]):
        is_left[positions] = False
    return named | ({"text": is_left.nonzero()[:, 0]} if is_left.any() else {})


def _resolve(place: Place, layout: Layout | None, count: int, image: int) -> list[int]:
    """The positions that a place names, of `count`."""
    if isinstance(place, str):
        known = {} if layout is None else layout.special
        if place not in known:
            raise SettingError(f"on_image: no special token {place!r}; known here: {', '.join(known) or 'none'}")
        return list(known[place])
    if isinstance(place, tuple):
        grid = None if layout is None else layout.grid_of(image)
        if grid is None:
            raise SettingError(f"on_image: patch {place} is not among these positions")
        position = int(grid.positions[find_patch(place, grid.shape)])
        if position == ABSENT:
            raise SettingError(f"on_image: patch {place} is in another part of this packed sequence")
        return [position]
    found = [place] if isinstance(place, int) else list(place)
    if not found or not all(-count <= at < count for at in found):
        raise SettingError(f"on_image: expected positions below {count}, got {place}")
    return [at % count for at in found]


def _name_of(position: int, layout: Layout, grid: PatchGrid) -> tuple[str, Patch | None]:
    for name, some in layout.special.items():
        if position in some:
            return (name if len(some) == 1 else f"{name} {some.index(position)}"), None
    where = (grid.positions == position).nonzero()
    if len(where):
        patch = tuple(where[0].tolist())[1 if grid.shape[0] == 1 else 0 :]
        return f"patch {patch}", patch
    return f"token {position}", None


def _describe(place: Place) -> str:
    if isinstance(place, tuple):
        return f"patch {place}"
    if isinstance(place, range):
        return f"tokens {place.start} to {place.stop - 1}"
    return place if isinstance(place, str) else f"token {place}"


def _stem(name: str) -> str:
    """The name of a layer without its numbers, which is the same for all layers of a stack."""
    return "".join("*" if part.isdigit() else f".{part}" for part in name.partition("#")[0].split("."))


def _list_names(names: Mapping[str, object]) -> str:
    shown = list(names)
    return ", ".join(shown if len(shown) <= 6 else [*shown[:3], "...", *shown[-2:]])
