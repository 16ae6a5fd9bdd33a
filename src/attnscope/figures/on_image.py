"""`on_image`: a map over the patches of an image, drawn on the photo; several heads as small multiples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.errors import SettingError
from attnscope.extras import import_extra
from attnscope.figures.drawing import COLOURS, new_figure
from attnscope.images.patch_map import PatchMap, find_patch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

SINGLE_INCHES, SMALL_INCHES = 3.6, 1.5  # of the longer side of a photo
MAX_COLUMNS = 6  # by default
GREY = 0.75  # how far the photo is moved to grey, so that colours are those of the map
OUTLINE = "#ff3b30"


def on_image(
    patch_map: PatchMap,
    *,
    heads: Sequence[int] | int | None = None,
    frame: int | None = None,
    columns: int | None = None,
    alpha: float = 0.6,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw a map over patches on the photo, one panel per head, in one colour scale.

    Args:
        patch_map: What `ImageAttention.attends_to` and its other methods return.
        heads: The heads to draw, as indices of the model; all of them by default.
        frame: The frame of a video to draw; the frames of one head side by side by default.
        columns: How many panels to draw per row.
        alpha: The opacity of the map on the photo, from 0 to 1.
        limits: The lowest and highest value of the colour scale; from 0 to the largest value by default.
        title: The title of the figure, instead of that of the map.

    Returns:
        A matplotlib figure; `savefig` writes PNG or SVG. Hidden patches show the photo.

    Raises:
        SettingError: A head or frame does not exist, or there are several heads and several frames.

    >>> import torch
    >>> figure = on_image(PatchMap(torch.rand(4, 1, 3, 5), (0, 1, 2, 3)))
    >>> [axes.get_title() for axes in figure.axes[:4]]
    ['head 0', 'head 1', 'head 2', 'head 3']
    """
    panels, names = _panels(patch_map, heads, frame)
    if columns is not None and columns < 1:
        raise SettingError(f"on_image: expected columns of at least 1, got {columns}")
    wide = min(columns or min(math.ceil(math.sqrt(len(panels))), MAX_COLUMNS), len(panels))
    high = math.ceil(len(panels) / wide)
    aspect = _aspect(patch_map)
    side = SINGLE_INCHES if len(panels) == 1 else SMALL_INCHES
    width, height = side * min(aspect, 1.0), side / max(aspect, 1.0)
    figure = new_figure(wide * (width + 0.06) + 0.9, high * (height + 0.2) + 0.45)
    norm = _norm([values for values, _ in panels], limits)
    grid = figure.subplots(high, wide, squeeze=False)
    for place in grid.flat[len(panels) :]:
        place.remove()
    shown = list(grid.flat[: len(panels)])
    for axes, (values, photo), name in zip(shown, panels, names, strict=True):
        _draw(axes, patch_map, values, photo, norm, alpha)
        axes.set_title(name, fontsize=8, pad=3)
    figure.suptitle(title if title is not None else patch_map.title, fontsize=9)
    mappable = import_extra("matplotlib.cm").ScalarMappable(norm, COLOURS)
    bar = figure.colorbar(mappable, ax=shown, shrink=0.8, aspect=28, pad=0.02)
    bar.set_label(patch_map.quantity, fontsize=8)
    bar.ax.tick_params(which="both", labelsize=7, width=0.6, length=2.5)
    bar.outline.set_linewidth(0.6)
    return figure


Panel = tuple[np.ndarray, np.ndarray | None]
"""Values (rows, columns), and the photo below them."""


def _panels(patch_map: PatchMap, heads: Sequence[int] | int | None, frame: int | None) -> tuple[list[Panel], list[str]]:
    """The values and titles of all panels: heads of one frame, or frames of one head."""
    values = patch_map.values.detach().float().cpu().numpy()
    known = patch_map.heads
    wanted = [heads] if isinstance(heads, int) else heads
    if wanted is not None:
        missing = [head for head in wanted if head not in known]
        if missing or not wanted:
            raise SettingError(f"on_image: expected heads among {list(known)}, got {list(wanted)}")
        values, known = values[[known.index(head) for head in wanted]], tuple(wanted)
    frames = values.shape[1]
    if frame is not None and not 0 <= frame < frames:
        raise SettingError(f"on_image: expected a frame from 0 to {frames - 1}, got {frame}")
    if frame is None and frames > 1:
        if len(values) > 1:
            raise SettingError("on_image: several heads and several frames; choose heads=..., frame=..., or .mean()")
        return [(values[0, at], _photo(patch_map, at)) for at in range(frames)], [f"frame {at}" for at in range(frames)]
    photo = _photo(patch_map, frame or 0)
    names = [f"head {head}" for head in known] or [""] * len(values)
    return [(one[frame or 0], photo) for one in values], names


def _photo(patch_map: PatchMap, frame: int) -> np.ndarray | None:
    photo = patch_map.photo
    return photo[frame] if photo is not None and photo.ndim == 4 else photo


def _aspect(patch_map: PatchMap) -> float:
    """Width by height of a panel."""
    if patch_map.photo is not None:
        height, width = patch_map.photo.shape[-3:-1]
        return width / height
    _, rows, columns = patch_map.grid
    return columns / rows


def _norm(values: Sequence[np.ndarray], limits: tuple[float, float] | None) -> Normalize:
    if limits is not None and not limits[0] < limits[1]:
        raise SettingError(f"on_image: expected limits=(lowest, highest), got {limits}")
    finite = np.concatenate([one[np.isfinite(one)] for one in values])
    low, high = limits or (0.0, float(finite.max(initial=0.0)) or 1.0)
    return import_extra("matplotlib.colors").Normalize(low, high, clip=True)


def _draw(
    axes: Axes, patch_map: PatchMap, values: np.ndarray, photo: np.ndarray | None, norm: Normalize, alpha: float
) -> None:
    """Draw the photo, the map on the part that the patches cover, and outlines of the marked patches."""
    box = patch_map.box
    width, height = (1.0, 1.0) if photo is None else (photo.shape[1], photo.shape[0])
    if photo is None:
        width, height = values.shape[1], values.shape[0]
    else:
        grey = photo.mean(-1, keepdims=True)
        axes.imshow(photo + GREY * (grey - photo), extent=(0, width, height, 0), interpolation="antialiased")
    left, right, top, bottom = box.left * width, box.right * width, box.top * height, box.bottom * height
    colormap = import_extra("matplotlib").colormaps[COLOURS].with_extremes(bad=(0, 0, 0, 0))
    axes.imshow(
        np.ma.masked_invalid(values),
        norm=norm,
        cmap=colormap,
        extent=(left, right, bottom, top),
        interpolation="none",
        alpha=1.0 if photo is None else alpha,
    )
    rectangle: Any = import_extra("matplotlib.patches").Rectangle
    _, rows, columns = patch_map.grid
    across, down = (right - left) / columns, (bottom - top) / rows
    for patch in patch_map.marked:
        _, row, column = find_patch(patch, patch_map.grid)
        corner = left + column * across, top + row * down
        axes.add_patch(rectangle(corner, across, down, fill=False, edgecolor=OUTLINE, linewidth=1.0))
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[], aspect="equal")
    for spine in axes.spines.values():
        spine.set(linewidth=0.4, color="#888888")
