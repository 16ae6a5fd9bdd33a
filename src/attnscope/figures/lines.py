"""`lines`: a few curves, each labelled at its end.

In: numbers. Out: a figure. Does not know: what was measured. Memory: that of the curves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from attnscope.errors import ShapeError
from attnscope.extras import import_extra
from attnscope.figures.drawing import new_figure
from attnscope.figures.panel import (
    COLOURS,
    POINTS,
    draw_end_labels,
    draw_reference_lines,
    end_label,
    finite,
    fit_figure,
    format_tick,
    plain_frame,
    set_log_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.6, 2.7  # inches of the panel
ALL_COLOURS = (*COLOURS, "#56b4e9", "#8c6d31")
MAX_MARKED = 40  # points with a marker each
MAX_TICKS = 9


def lines(
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    title: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    reference_lines: Mapping[str, float] = MappingProxyType({}),
    dashed: Collection[str] = (),
) -> Figure:
    """Draw up to eight curves over `x`.

    Args:
        x: The x values.
        curves: The y values of each curve by name; NaN is a gap.
        xlabel: The label of the x axis.
        ylabel: The label of the y axis.
        title: The title of the figure.
        log_x: Use a logarithmic x axis, with ticks at powers of two if all x are.
        log_y: Use a logarithmic y axis.
        reference_lines: Heights of horizontal lines by name.
        dashed: The names of curves to draw dashed.

    Returns:
        A matplotlib figure.

    >>> figure = lines([64, 128, 256], {"measured": [1.0, 2.1, 3.9]}, xlabel="tokens", ylabel="seconds", log_x=True)
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['64', '128', '256']
    """
    places = np.asarray(x, dtype=float)
    drawn = {name: np.asarray(values, dtype=float) for name, values in curves.items()}
    _check(places, drawn, log_x=log_x, log_y=log_y, reference_lines=reference_lines, dashed=dashed)
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.add_subplot()
    names = []
    mark = {"marker": "o", "markersize": 2.6} if len(places) <= MAX_MARKED else {}
    for (name, values), colour in zip(drawn.items(), ALL_COLOURS, strict=False):
        style = (0, (4, 2)) if name in dashed else "-"
        axes.plot(places, values, color=colour, linewidth=1.6, linestyle=style, label=name, **mark)
        names += end_label(name, colour, places.tolist(), values)
    _scale_x(axes, places, log_x)
    _scale_y(axes, finite([*np.concatenate(list(drawn.values())), *reference_lines.values()]), log_y)
    names += draw_reference_lines(axes, reference_lines)
    axes.set_xlabel(xlabel, fontsize=POINTS, parse_math=False)
    axes.set_ylabel(ylabel, fontsize=POINTS, parse_math=False)
    plain_frame(axes)
    draw_end_labels(axes, names, HEIGHT)
    fit_figure(figure, axes, WIDTH, HEIGHT, title)
    return figure


def _check(
    places: np.ndarray,
    curves: Mapping[str, np.ndarray],
    *,
    log_x: bool,
    log_y: bool,
    reference_lines: Mapping[str, float],
    dashed: Collection[str],
) -> None:
    if places.ndim != 1 or not len(places) or not np.isfinite(places).all():
        raise ShapeError(f"lines: expected at least one x, all finite, got {places.tolist()}")
    if not 1 <= len(curves) <= len(ALL_COLOURS):
        raise ShapeError(f"lines: expected 1 to {len(ALL_COLOURS)} curves, got {len(curves)}")
    for name, values in curves.items():
        if values.shape != places.shape:
            raise ShapeError(f"lines: expected {len(places)} numbers for {name!r}, as many as x, got {values.shape}")
    if unknown := set(dashed) - set(curves):
        raise ShapeError(f"lines: unknown curves dashed={sorted(unknown)}; expected some of {', '.join(curves)}")
    if not all(map(math.isfinite, reference_lines.values())):
        raise ShapeError(f"lines: expected finite reference_lines, got {dict(reference_lines)}")
    if log_x and places.min() <= 0:
        raise ShapeError(f"lines: expected x above 0 with log_x, got {places.min():g}")
    lowest = finite([*np.concatenate(list(curves.values())), *reference_lines.values()]).min(initial=1.0)
    if log_y and lowest <= 0:
        raise ShapeError(
            f"lines: expected numbers above 0 with log_y, got {lowest:g}; use NaN for a gap, or leave log_y out"
        )


def _scale_x(axes: Axes, places: np.ndarray, logarithmic: bool) -> None:
    ticker = import_extra("matplotlib.ticker")
    low, high = float(places.min()), float(places.max())
    if not logarithmic:
        room = (high - low) * 0.02 or 1.0
        axes.set_xlim(low - room, high + room)
        whole = bool((places == np.round(places)).all())
        axes.xaxis.set_major_locator(ticker.MaxNLocator(7, integer=whole, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(format_tick))
        return
    axes.set_xscale("log", base=2)
    room = (high / low) ** 0.02 if high > low else 1.5
    axes.set_xlim(low / room, high * room)
    powers = np.log2(places)
    if (powers == np.round(powers)).all():
        ticks = np.unique(places)
        ticks = ticks[:: -(-len(ticks) // MAX_TICKS)]
        axes.set_xticks(ticks, [format_tick(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    else:
        axes.set_xscale("log")
        set_log_ticks(axes.xaxis, low, high)


def _scale_y(axes: Axes, seen: np.ndarray, logarithmic: bool) -> None:
    """Set limits around everything, starting at 0 where that costs little space."""
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 1.0)
    if logarithmic:
        axes.set_yscale("log")
        room = (high / low) ** 0.05 if high > low else 1.5
        axes.set_ylim(low / room, high * room)
        set_log_ticks(axes.yaxis, low / room, high * room)
        return
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    axes.set_ylim(0.0 if 0 <= low <= high / 3 else low - room, high + room)
    axes.yaxis.set_major_formatter(import_extra("matplotlib.ticker").FuncFormatter(format_tick))
