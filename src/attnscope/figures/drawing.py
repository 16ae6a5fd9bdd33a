"""Draws a picture as an image: one colour scale, and hatching for masked cells.

A weight of zero has the lowest colour of the scale. A masked cell is transparent and shows the hatching below.
Figures are made without pyplot: no global state, no display, and nothing to close.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.extras import import_extra
from attnscope.figures.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.patches import Patch

DPI = 200
COLOURS = "viridis"
HATCHING = {"facecolor": "#f0f0f0", "edgecolor": "#c4c4c4", "hatch": "//////", "linewidth": 0.0}
HATCH_WIDTH = 0.5
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 7, "handlelength": 1.4, "handleheight": 1.2, "borderpad": 0}
MAX_LINEAR_KEYS = 256  # above, most weights are too small for a linear scale
DECADES = 5  # of a logarithmic scale
MEANING = {"density": "mean attention weight", "mass": "attention weight of the bin", "max": "largest attention weight"}


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure of a size in inches, with automatic layout."""
    return import_extra("matplotlib.figure").Figure(figsize=(width, height), dpi=DPI, layout="compressed")


def to_svg(figure: Figure) -> bytes:
    """Return a figure as SVG; equal figures give equal bytes."""
    file = BytesIO()
    with import_extra("matplotlib").rc_context({"svg.hashsalt": "attnscope"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def make_norm(pictures: Sequence[Picture], scale: str | None, limits: tuple[float, float] | None) -> Normalize:
    """Return one colour scale for all pictures: "linear" from 0, or "log" over at most five decades.

    Without `scale`, pictures of at most 256 keys are linear.
    """
    colours = import_extra("matplotlib.colors")
    if scale not in (None, "linear", "log"):
        raise ValueError(f"expected scale='linear', 'log' or None, got {scale!r}")
    if limits is not None and not limits[0] < limits[1]:
        raise ValueError(f"expected limits=(lowest, highest), got {limits}")
    values = np.concatenate([picture.unmasked for picture in pictures])
    highest = float(values.max(initial=0.0)) or 1.0
    if (scale or ("log" if max(p.keys for p in pictures) > MAX_LINEAR_KEYS else "linear")) == "linear":
        low, high = limits or (0.0, highest)
        return colours.Normalize(low, high, clip=True)
    if limits is not None and limits[0] <= 0:
        raise ValueError(f"expected limits above 0 for scale='log', got {limits}; use scale='linear'")
    lowest = float(values[values > 0].min(initial=highest))
    low, high = limits or (max(min(lowest, highest / 2), highest * 10.0**-DECADES), highest)
    # Clipped, because otherwise a zero would be transparent and look masked.
    return colours.LogNorm(low, high, clip=True)


def draw_picture(axes: Axes, picture: Picture, norm: Normalize) -> AxesImage:
    """Draw a picture with token positions along both axes: queries downwards, keys to the right."""
    left, right, bottom, top = edges = (-0.5, picture.keys - 0.5, picture.queries - 0.5, -0.5)
    if picture.masked.any():
        box = import_extra("matplotlib.patches").Rectangle((left, top), right - left, bottom - top, **HATCHING)
        box.set_hatch_linewidth(HATCH_WIDTH)
        axes.add_patch(box).set_zorder(-1)
    colormap = import_extra("matplotlib").colormaps[COLOURS].with_extremes(bad=(0, 0, 0, 0))
    ratio = picture.keys / picture.queries
    image = axes.imshow(
        np.ma.array(picture.values, mask=picture.masked),
        norm=norm,
        cmap=colormap,
        extent=edges,
        interpolation="none",
        aspect="equal" if 1 / 4 <= ratio <= 4 else "auto",
    )
    for spine in axes.spines.values():
        spine.set(linewidth=0.6, color="#444444")
    axes.tick_params(labelsize=7, width=0.6, length=2.5, color="#444444")
    return image


def add_colour_bar(figure: Figure, image: AxesImage, axes: Any, pictures: Sequence[Picture], reduction: str) -> None:
    """Add a colour bar, and a legend if there are masked cells."""
    exact = all(picture.exact for picture in pictures)
    below = any((picture.unmasked < (image.norm.vmin or 0.0)).any() for picture in pictures)
    above = any((picture.unmasked > (image.norm.vmax or 1.0)).any() for picture in pictures)
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[below, above]
    bar = figure.colorbar(image, ax=axes, extend=extend, shrink=0.8, aspect=28, pad=0.02)
    bar.set_label("attention weight" if exact else MEANING[reduction], fontsize=8)
    bar.ax.tick_params(which="both", labelsize=7, width=0.6, length=2.5)
    bar.outline.set_linewidth(0.6)
    if any(picture.masked.any() for picture in pictures):
        bar.ax.legend(handles=[masked_patch()], loc="upper left", bbox_to_anchor=(-0.8, -0.07), **LEGEND)


def masked_patch() -> Patch:
    """Return the legend entry of masked cells."""
    patch = import_extra("matplotlib.patches").Patch(**HATCHING, label="masked")
    patch.set_hatch_linewidth(HATCH_WIDTH)
    return patch
