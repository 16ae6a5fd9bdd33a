"""`grouped_bars`: groups of bars with their numbers above them.

In: numbers by two names. Out: a figure. Does not know: what was measured. Memory: that of the bars.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from attnscope.errors import ShapeError
from attnscope.extras import import_extra
from attnscope.figures.drawing import LEGEND, new_figure
from attnscope.figures.panel import (
    COLOURS,
    POINTS,
    SMALL,
    draw_end_labels,
    draw_reference_lines,
    finite,
    fit_figure,
    format_number,
    format_tick,
    plain_frame,
    set_log_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = 2.5  # inches of the panel
BAR, BETWEEN = 0.44, 0.3  # inches of a bar, and between groups
MIN_WIDTH = 2.6  # inches of the panel
MAX_BARS = 36
LETTERS_PER_INCH = 15  # below a group


def grouped_bars(
    groups: Mapping[str, Mapping[str, float]],
    *,
    ylabel: str,
    title: str | None = None,
    log_y: bool = False,
    reference_lines: Mapping[str, float] = MappingProxyType({}),
) -> Figure:
    """Draw groups of bars, with up to six bars of the same names in each.

    Args:
        groups: Numbers by group and bar; NaN is drawn as a dash.
        ylabel: The label of the y axis.
        title: The title of the figure.
        log_y: Use a logarithmic y axis. The lengths of bars then have no meaning, only their differences.
        reference_lines: Heights of horizontal lines by name.

    Returns:
        A matplotlib figure.

    >>> groups = {"shared": {"start": 2.3, "end": 1.1}, "separate": {"start": 2.3, "end": 0.2}}
    >>> figure = grouped_bars(groups, ylabel="loss")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['2.3', '2.3', '1.1', '0.2']
    """
    names = _check(groups, reference_lines, log_y)
    width = max((BAR * len(names) + BETWEEN) * len(groups), MIN_WIDTH)
    figure = new_figure(width, HEIGHT)
    axes = figure.add_subplot()
    values = [value for group in groups.values() for value in group.values()]
    _scale(axes, finite([*values, *reference_lines.values()]), log_y)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    _draw_bars(axes, groups, names, width / len(groups))
    axes.set_ylabel(ylabel, fontsize=POINTS, parse_math=False)
    plain_frame(axes)
    axes.tick_params(axis="x", length=0, labelsize=POINTS)
    for label in axes.get_xticklabels():
        label.set_parse_math(False)
    if len(names) > 1:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0.0, 1.02),
            ncols=len(names) if sum(map(len, names)) < 9 * width else 1,
            columnspacing=1.4,
            handletextpad=0.5,
            **LEGEND,
        )
    draw_end_labels(axes, draw_reference_lines(axes, reference_lines), HEIGHT)
    fit_figure(figure, axes, width, HEIGHT, title)
    return figure


def _draw_bars(axes: Axes, groups: Mapping[str, Mapping[str, float]], names: list[str], unit: float) -> None:
    """Draw all bars with their numbers, and the names of the groups; `unit` is the width of a group in inches."""
    bar = min(BAR, (unit - BETWEEN) / len(names)) / unit
    for at, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        places = np.arange(len(groups)) + (at - (len(names) - 1) / 2) * bar
        values = np.array([group[name] for group in groups.values()], dtype=float)
        # Below the reference lines, which have zorder 1.2.
        axes.bar(places, np.nan_to_num(values), bar * 0.92, color=colour, label=name, zorder=1.1)
        for place, value in zip(places, values, strict=True):
            _number(axes, float(place), float(value))
    below = [textwrap.fill(name, max(int(unit * LETTERS_PER_INCH), 6)) for name in groups]
    axes.set_xticks(range(len(groups)), below)


def _check(groups: Mapping[str, Mapping[str, float]], reference_lines: Mapping[str, float], log_y: bool) -> list[str]:
    """Check that everything can be drawn, and return the names of the bars."""
    names = list(next(iter(groups.values()), {}))
    if not 1 <= len(names) <= len(COLOURS) or len(names) * len(groups) > MAX_BARS:
        raise ShapeError(
            f"grouped_bars: expected 1 to {len(COLOURS)} bars per group and at most {MAX_BARS} in all, got "
            f"{len(groups)} groups of {len(names)}"
        )
    for group, values in groups.items():
        if set(values) != set(names):
            raise ShapeError(f"grouped_bars: expected the bars {names} in {group!r}, got {list(values)}")
    numbers = [*(value for group in groups.values() for value in group.values()), *reference_lines.values()]
    if any(map(math.isinf, numbers)) or any(map(math.isnan, reference_lines.values())):
        raise ShapeError("grouped_bars: expected numbers that are finite or NaN, and finite reference_lines")
    lowest = finite(numbers).min(initial=1.0)
    if log_y and lowest <= 0:
        raise ShapeError(
            f"grouped_bars: expected numbers above 0 with log_y, got {lowest:g}; use NaN for a gap, or leave log_y out"
        )
    return names


def _scale(axes: Axes, seen: np.ndarray, logarithmic: bool) -> None:
    """Set limits from 0 with space for the numbers; on a logarithmic scale, from below the shortest bar."""
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 1.0)
    if logarithmic:
        axes.set_yscale("log")
        room = max((high / low) ** 0.1, 1.3)
        axes.set_ylim(low / room**2, high * room)
        set_log_ticks(axes.yaxis, low / room**2, high * room)
        return
    low, high = min(low, 0.0), max(high, 0.0)
    room = (high - low) * 0.1 or 1.0
    axes.set_ylim(low - room if low < 0 else 0.0, high + room if high > 0 or not low else 0.0)
    axes.yaxis.set_major_formatter(import_extra("matplotlib.ticker").FuncFormatter(format_tick))
    if low < 0:
        axes.axhline(0.0, color="#444444", linewidth=0.6, label="_zero")


def _number(axes: Axes, place: float, value: float) -> None:
    """Draw the number of a bar at its end."""
    missing = math.isnan(value)
    end = axes.get_ylim()[0] if missing and axes.get_yscale() == "log" else 0.0 if missing else value
    axes.annotate(
        "–" if missing else format_number(value),
        (place, end),
        (0, -2 if value < 0 else 2),
        textcoords="offset points",
        ha="center",
        va="top" if value < 0 else "bottom",
        fontsize=SMALL,
        color="#333333",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},  # keeps reference lines from crossing the number
    )
