"""What panels of curves and bars have in common: a plain frame, names beside curves, ticks, and room for all text.

In: axes that have been drawn on. Out: the same with text around them that neither meets other text nor is cut off.
Does not know: what the curves mean. Memory: that of the figure.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope.extras import import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#222222")
"""After Okabe and Ito, which all kinds of eyes can tell apart."""
FRAME, LEVEL = "#444444", "#767676"
INK = 0.75  # of the light of a colour: the lighter ones are too faint to be read as text
POINTS, SMALL, LARGE = 8, 7, 9
LANE = 0.14  # inches from a line of text to the next
EDGE = 0.12  # inches that are left free around everything
INCHES_A_LETTER = 0.066  # of the title
EARLY = 0.9  # of the way across a panel
LEADER: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2, "relpos": (0.0, 0.5)}


class Note(NamedTuple):
    """What is written about a point of a curve."""

    text: str
    colour: str
    place: float
    value: float


def name_at_end(text: str, colour: str, places: Sequence[float], values: np.ndarray) -> list[Note]:
    """The name of a curve at the last of its points that can be drawn, if there is one."""
    known = np.flatnonzero(np.isfinite(values))
    return [Note(text, colour, places[known[-1]], float(values[known[-1]])) for _ in known[:1]]


def write_names(axes: Axes, names: Sequence[Note], inches: float) -> None:
    """Names to the right of a panel of so many inches, each as near to the end of its curve as the others let it.

    From a curve that ends early, dots lead to its name, so that nobody takes the way for a part of the curve.
    """
    axes.get_ylim()  # which settles the limits
    across = axes.transScale + axes.transLimits
    ends = [across.transform((name.place, name.value)) for name in names]
    heights = spread([float(end[1]) for end in ends], LANE / inches)
    for name, end, height in zip(names, ends, heights, strict=True):
        axes.annotate(
            name.text,
            (name.place, name.value),
            (1.025, height),
            textcoords="axes fraction",
            fontsize=POINTS,
            color=ink(name.colour),
            va="center",
            arrowprops={**LEADER, "color": name.colour, "linestyle": ":" if end[0] < EARLY else "-"},
            annotation_clip=False,
            parse_math=False,
        )


def spread(heights: Sequence[float], lane: float) -> list[float]:
    """Heights a lane apart at least, in the same order: pushed up where need be, and down again from the top.

    >>> spread([0.5, 0.5, 0.125], 0.25), spread([1.0, 0.75], 0.25)
    ([0.5, 0.75, 0.125], [0.875, 0.625])
    """
    order = sorted(range(len(heights)), key=lambda at: heights[at])
    found = list(heights)
    for one, other in pairwise(order):
        found[other] = max(found[other], found[one] + lane)
    highest = 1 - lane / 2
    for at in reversed(order):
        found[at] = min(found[at], highest)
        highest = found[at] - lane
    return found


def ink(colour: str) -> tuple[float, ...]:
    """A colour for text."""
    return tuple(INK * part for part in import_extra("matplotlib.colors").to_rgb(colour))


def plain_frame(axes: Axes) -> None:
    """Axes to the left and below, thin."""
    axes.tick_params(which="both", labelsize=SMALL, width=0.6, length=2.5, color=FRAME)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(linewidth=0.6, color=FRAME)


def draw_levels(axes: Axes, levels: Mapping[str, float]) -> list[Note]:
    """A dashed line across at each level, and what is to be written at its end."""
    for text, value in levels.items():
        axes.axhline(value, color=LEVEL, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1.2, label=f"_{text}")
    right = axes.get_xlim()[1]
    return [Note(text, LEVEL, right, value) for text, value in levels.items()]


def number_text(value: float) -> str:
    """A measured number as it is written at a bar.

    >>> number_text(0.12345), number_text(66048.0), number_text(1.5), number_text(2e-7), number_text(3.2e12)
    ('0.123', '66,048', '1.5', '2e-07', '3.2e+12')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def tick_text(value: float, _: int | None = None) -> str:
    """What is written at a tick; ticks are round, so six digits tell them.

    >>> tick_text(131072.0), tick_text(0.25), tick_text(1e-9)
    ('131,072', '0.25', '1e-09')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:g}"


def logarithmic_ticks(axis: Axis, low: float, high: float) -> None:
    """Ticks for a logarithmic axis between two numbers: at powers of ten, or closer where it spans few of them."""
    ticker = import_extra("matplotlib.ticker")
    decades = math.log10(high / low)
    if decades < 0.7:
        axis.set_major_locator(ticker.MaxNLocator(6))
    else:
        axis.set_major_locator(ticker.LogLocator(subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0), numticks=9))
    if low >= 1e-4 and high < 1e7:
        axis.set_major_formatter(ticker.FuncFormatter(tick_text))
    axis.set_minor_formatter(ticker.NullFormatter())


def fit(figure: Figure, axes: Axes, width: float, height: float, title: str | None) -> None:
    """Give a panel its size in inches, and the figure the room that all text around the panel needs."""
    figure.set_layout_engine("none")
    figure.set_size_inches(width + 2, height + 2)
    axes.set_position((1 / (width + 2), 1 / (height + 2), width / (width + 2), height / (height + 2)))
    renderer = import_extra("matplotlib.backends.backend_agg").FigureCanvasAgg(figure).get_renderer()
    outer, inner = axes.get_tightbbox(renderer), axes.get_window_extent(renderer)
    assert outer is not None, "a panel is visible"
    left, below, right, above = (
        max(0.0, pixels / figure.dpi) + EDGE
        for pixels in (inner.x0 - outer.x0, inner.y0 - outer.y0, outer.x1 - inner.x1, outer.y1 - inner.y1)
    )
    wide = left + width + right
    lines = textwrap.wrap(title or "", int((wide - 2 * EDGE) / INCHES_A_LETTER))
    high = below + height + above + 0.17 * len(lines) + (0.06 if lines else 0.0)
    figure.set_size_inches(wide, high)
    axes.set_position((left / wide, below / high, width / wide, height / high))
    if lines:
        place = EDGE / wide, 1 - EDGE / high
        figure.text(*place, "\n".join(lines), va="top", fontsize=LARGE, linespacing=1.25, parse_math=False)


def finite(numbers: Iterable[float]) -> np.ndarray:
    """Those that can be drawn.

    >>> finite([1.0, float("nan"), 2.0]).tolist()
    [1.0, 2.0]
    """
    values = np.array(list(numbers), dtype=float)
    return values[np.isfinite(values)]
