"""Shared parts of panels with curves or bars: frame, labels at the ends of curves, ticks, and layout.

In: axes that have been drawn on. Out: the same axes, with text around them that neither overlaps nor is cut off.
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
"""The colour-blind safe palette of Okabe and Ito."""
FRAME, REFERENCE = "#444444", "#767676"
TEXT_BRIGHTNESS = 0.75  # of a colour: light colours are too faint for text
POINTS, SMALL, LARGE = 8, 7, 9
LANE = 0.14  # inches between lines of text
EDGE = 0.12  # inches of margin
LETTER_INCHES = 0.066  # of the title
EARLY = 0.9  # fraction of the width of a panel
LEADER: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2, "relpos": (0.0, 0.5)}


class CurveLabel(NamedTuple):
    """A text at a point of a curve."""

    text: str
    colour: str
    place: float
    value: float


def end_label(text: str, colour: str, places: Sequence[float], values: np.ndarray) -> list[CurveLabel]:
    """Return the label of a curve at its last finite point, or an empty list."""
    known = np.flatnonzero(np.isfinite(values))
    return [CurveLabel(text, colour, places[known[-1]], float(values[known[-1]])) for _ in known[:1]]


def draw_end_labels(axes: Axes, names: Sequence[CurveLabel], inches: float) -> None:
    """Draw labels to the right of a panel of this height, close to the ends of their curves, without overlap.

    A dotted line leads from a curve that ends early to its label, so that it does not look like a part of the curve.
    """
    axes.get_ylim()  # updates the limits
    across = axes.transScale + axes.transLimits
    ends = [across.transform((name.place, name.value)) for name in names]
    heights = spread_apart([float(end[1]) for end in ends], LANE / inches)
    for name, end, height in zip(names, ends, heights, strict=True):
        axes.annotate(
            name.text,
            (name.place, name.value),
            (1.025, height),
            textcoords="axes fraction",
            fontsize=POINTS,
            color=text_colour(name.colour),
            va="center",
            arrowprops={**LEADER, "color": name.colour, "linestyle": ":" if end[0] < EARLY else "-"},
            annotation_clip=False,
            parse_math=False,
        )


def spread_apart(heights: Sequence[float], lane: float) -> list[float]:
    """Move heights at least a lane apart and keep their order: first upwards, then down from the top.

    >>> spread_apart([0.5, 0.5, 0.125], 0.25), spread_apart([1.0, 0.75], 0.25)
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


def text_colour(colour: str) -> tuple[float, ...]:
    """Return a darker colour for text."""
    return tuple(TEXT_BRIGHTNESS * part for part in import_extra("matplotlib.colors").to_rgb(colour))


def plain_frame(axes: Axes) -> None:
    """Draw thin axes at the left and at the bottom only."""
    axes.tick_params(which="both", labelsize=SMALL, width=0.6, length=2.5, color=FRAME)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(linewidth=0.6, color=FRAME)


def draw_reference_lines(axes: Axes, reference_lines: Mapping[str, float]) -> list[CurveLabel]:
    """Draw dashed horizontal lines, and return their labels."""
    for text, value in reference_lines.items():
        axes.axhline(value, color=REFERENCE, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1.2, label=f"_{text}")
    right = axes.get_xlim()[1]
    return [CurveLabel(text, REFERENCE, right, value) for text, value in reference_lines.items()]


def format_number(value: float) -> str:
    """Format a number for the end of a bar.

    >>> format_number(0.12345), format_number(66048.0), format_number(1.5), format_number(2e-7), format_number(3.2e12)
    ('0.123', '66,048', '1.5', '2e-07', '3.2e+12')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def format_tick(value: float, _: int | None = None) -> str:
    """Format a tick; ticks are round, so six digits are enough.

    >>> format_tick(131072.0), format_tick(0.25), format_tick(1e-9)
    ('131,072', '0.25', '1e-09')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:g}"


def set_log_ticks(axis: Axis, low: float, high: float) -> None:
    """Set the ticks of a logarithmic axis: at powers of ten, or closer if it spans only a few."""
    ticker = import_extra("matplotlib.ticker")
    decades = math.log10(high / low)
    if decades < 0.7:
        axis.set_major_locator(ticker.MaxNLocator(6))
    else:
        axis.set_major_locator(ticker.LogLocator(subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0), numticks=9))
    if low >= 1e-4 and high < 1e7:
        axis.set_major_formatter(ticker.FuncFormatter(format_tick))
    axis.set_minor_formatter(ticker.NullFormatter())


def fit_figure(figure: Figure, axes: Axes, width: float, height: float, title: str | None) -> None:
    """Set the size of a panel in inches, and enlarge the figure for the text around it."""
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
    lines = textwrap.wrap(title or "", int((wide - 2 * EDGE) / LETTER_INCHES))
    high = below + height + above + 0.17 * len(lines) + (0.06 if lines else 0.0)
    figure.set_size_inches(wide, high)
    axes.set_position((left / wide, below / high, width / wide, height / high))
    if lines:
        place = EDGE / wide, 1 - EDGE / high
        figure.text(*place, "\n".join(lines), va="top", fontsize=LARGE, linespacing=1.25, parse_math=False)


def finite(numbers: Iterable[float]) -> np.ndarray:
    """Return the finite numbers.

    >>> finite([1.0, float("nan"), 2.0]).tolist()
    [1.0, 2.0]
    """
    values = np.array(list(numbers), dtype=float)
    return values[np.isfinite(values)]
