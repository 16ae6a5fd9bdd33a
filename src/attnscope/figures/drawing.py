"""How a picture becomes an image: one scale of colours, and hatching where the mask hides everything.

A weight of zero has the lowest colour of the scale; a hidden cell has no colour at all, and shows the hatching below.
Figures are made without pyplot: nothing is global, nothing needs a screen, and nothing has to be closed.
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

DOTS = 200  # an inch
COLOURS = "viridis"
HATCHING = {"facecolor": "#f0f0f0", "edgecolor": "#c4c4c4", "hatch": "//////", "linewidth": 0.0}
HATCH_WIDTH = 0.5
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 7, "handlelength": 1.4, "handleheight": 1.2, "borderpad": 0}
LINEAR_KEYS = 256  # above, most weights are too small to be seen on a linear scale
DECADES = 5  # of a logarithmic scale
MEANING = {"density": "mean attention weight", "mass": "attention weight of the bin", "max": "largest attention weight"}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches that makes room for its labels."""
    return import_extra("matplotlib.figure").Figure(figsize=(width, height), dpi=DOTS, layout="compressed")


def svg(figure: Figure) -> bytes:
    """A figure as SVG: the same bytes for the same figure, wherever and whenever it is drawn."""
    file = BytesIO()
    with import_extra("matplotlib").rc_context({"svg.hashsalt": "attnscope"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def colour_scale(pictures: Sequence[Picture], scale: str | None, limits: tuple[float, float] | None) -> Normalize:
    """One scale for all pictures: "linear" from 0, or "log" over at most five decades, up to the largest value.

    Without `scale`, pictures of at most 256 keys are linear.
    """
    colours = import_extra("matplotlib.colors")
    if scale not in (None, "linear", "log"):
        raise ValueError(f"scale={scale!r}: colours are spread 'linear' or 'log'; without it, by the number of keys")
    if limits is not None and not limits[0] < limits[1]:
        raise ValueError(f"limits={limits}: wants (lowest, highest) values of the scale of colours")
    seen = np.concatenate([picture.seen for picture in pictures])
    highest = float(seen.max(initial=0.0)) or 1.0
    if (scale or ("log" if max(p.keys for p in pictures) > LINEAR_KEYS else "linear")) == "linear":
        low, high = limits or (0.0, highest)
        return colours.Normalize(low, high, clip=True)
    if limits is not None and limits[0] <= 0:
        raise ValueError(f"limits={limits}: a logarithmic scale starts above 0; give such limits, or scale='linear'")
    lowest = float(seen[seen > 0].min(initial=highest))
    low, high = limits or (max(min(lowest, highest / 2), highest * 10.0**-DECADES), highest)
    # Clipped, because otherwise a zero would have no colour and look hidden.
    return colours.LogNorm(low, high, clip=True)


def paint(axes: Axes, picture: Picture, norm: Normalize) -> AxesImage:
    """Draw a picture, positions of tokens along both axes: queries downwards, keys to the right."""
    left, right, bottom, top = edges = (-0.5, picture.keys - 0.5, picture.queries - 0.5, -0.5)
    if picture.hidden.any():
        box = import_extra("matplotlib.patches").Rectangle((left, top), right - left, bottom - top, **HATCHING)
        box.set_hatch_linewidth(HATCH_WIDTH)
        axes.add_patch(box).set_zorder(-1)
    colormap = import_extra("matplotlib").colormaps[COLOURS].with_extremes(bad=(0, 0, 0, 0))
    ratio = picture.keys / picture.queries
    image = axes.imshow(
        np.ma.array(picture.values, mask=picture.hidden),
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


def add_scale(figure: Figure, image: AxesImage, axes: Any, pictures: Sequence[Picture], how: str) -> None:
    """A bar that says what the colours mean, and a legend for the hatching where there is any."""
    exact = all(picture.exact for picture in pictures)
    below = any((picture.seen < (image.norm.vmin or 0.0)).any() for picture in pictures)
    above = any((picture.seen > (image.norm.vmax or 1.0)).any() for picture in pictures)
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[below, above]
    bar = figure.colorbar(image, ax=axes, extend=extend, shrink=0.8, aspect=28, pad=0.02)
    bar.set_label("attention weight" if exact else MEANING[how], fontsize=8)
    bar.ax.tick_params(which="both", labelsize=7, width=0.6, length=2.5)
    bar.outline.set_linewidth(0.6)
    if any(picture.hidden.any() for picture in pictures):
        bar.ax.legend(handles=[masked_sample()], loc="upper left", bbox_to_anchor=(-0.8, -0.07), **LEGEND)


def masked_sample() -> Patch:
    """What a legend shows for the hatching."""
    sample = import_extra("matplotlib.patches").Patch(**HATCHING, label="masked")
    sample.set_hatch_linewidth(HATCH_WIDTH)
    return sample
