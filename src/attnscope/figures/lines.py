"""`lines`: a few curves over one axis, each with its name at its end.

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
    draw_levels,
    finite,
    fit,
    logarithmic_ticks,
    name_at_end,
    plain_frame,
    tick_text,
    write_names,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.6, 2.7  # inches of the panel
ALL_COLOURS = (*COLOURS, "#56b4e9", "#8c6d31")
FEW = 40  # points that are marked one by one
TICKS = 9  # powers of two that have room along the axis


def lines(
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    title: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    levels: Mapping[str, float] = MappingProxyType({}),
    dashed: Collection[str] = (),
) -> Figure:
    """Up to eight curves over `x`, and named `levels` as lines across; NaN is a gap.

    With `log_x`, powers of two have their ticks. Curves in `dashed` are drawn so, as what is computed beside what is
    measured.

    >>> figure = lines([64, 128, 256], {"measured": [1.0, 2.1, 3.9]}, xlabel="tokens", ylabel="seconds", log_x=True)
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['64', '128', '256']
    """
    places = np.asarray(x, dtype=float)
    drawn = {name: np.asarray(values, dtype=float) for name, values in curves.items()}
    _check(places, drawn, log_x=log_x, log_y=log_y, levels=levels, dashed=dashed)
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.add_subplot()
    names = []
    mark = {"marker": "o", "markersize": 2.6} if len(places) <= FEW else {}
    for (name, values), colour in zip(drawn.items(), ALL_COLOURS, strict=False):
        style = (0, (4, 2)) if name in dashed else "-"
        axes.plot(places, values, color=colour, linewidth=1.6, linestyle=style, label=name, **mark)
        names += name_at_end(name, colour, places.tolist(), values)
    _scale_x(axes, places, log_x)
    _scale_y(axes, finite([*np.concatenate(list(drawn.values())), *levels.values()]), log_y)
    names += draw_levels(axes, levels)
    axes.set_xlabel(xlabel, fontsize=POINTS, parse_math=False)
    axes.set_ylabel(ylabel, fontsize=POINTS, parse_math=False)
    plain_frame(axes)
    write_names(axes, names, HEIGHT)
    fit(figure, axes, WIDTH, HEIGHT, title)
    return figure


def _check(
    places: np.ndarray,
    curves: Mapping[str, np.ndarray],
    *,
    log_x: bool,
    log_y: bool,
    levels: Mapping[str, float],
    dashed: Collection[str],
) -> None:
    if places.ndim != 1 or not len(places) or not np.isfinite(places).all():
        raise ShapeError(f"lines: x is a row of one number at least, all finite, got {places.tolist()}")
    if not 1 <= len(curves) <= len(ALL_COLOURS):
        raise ShapeError(f"lines: draws 1 to {len(ALL_COLOURS)} curves, got {len(curves)}; choose some")
    for name, values in curves.items():
        if values.shape != places.shape:
            raise ShapeError(f"lines: {name!r} takes {len(places)} numbers, as many as x has, got {values.shape}")
    if unknown := set(dashed) - set(curves):
        raise ShapeError(f"lines: dashed={sorted(unknown)} names no curve; there are {', '.join(curves)}")
    if not all(map(math.isfinite, levels.values())):
        raise ShapeError(f"lines: levels are finite numbers, got {dict(levels)}")
    if log_x and places.min() <= 0:
        raise ShapeError(f"lines: log_x takes x above 0, got {places.min():g}; leave it out, or start later")
    lowest = finite([*np.concatenate(list(curves.values())), *levels.values()]).min(initial=1.0)
    if log_y and lowest <= 0:
        raise ShapeError(
            f"lines: log_y takes numbers above 0, got {lowest:g}; put NaN there for a gap, or leave it out"
        )


def _scale_x(axes: Axes, places: np.ndarray, logarithmic: bool) -> None:
    ticker = import_extra("matplotlib.ticker")
    low, high = float(places.min()), float(places.max())
    if not logarithmic:
        room = (high - low) * 0.02 or 1.0
        axes.set_xlim(low - room, high + room)
        whole = bool((places == np.round(places)).all())
        axes.xaxis.set_major_locator(ticker.MaxNLocator(7, integer=whole, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(tick_text))
        return
    axes.set_xscale("log", base=2)
    room = (high / low) ** 0.02 if high > low else 1.5
    axes.set_xlim(low / room, high * room)
    powers = np.log2(places)
    if (powers == np.round(powers)).all():
        ticks = np.unique(places)
        ticks = ticks[:: -(-len(ticks) // TICKS)]
        axes.set_xticks(ticks, [tick_text(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    else:
        axes.set_xscale("log")
        logarithmic_ticks(axes.xaxis, low, high)


def _scale_y(axes: Axes, seen: np.ndarray, logarithmic: bool) -> None:
    """Limits around everything; from 0 where that costs little, so that heights can be compared."""
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 1.0)
    if logarithmic:
        axes.set_yscale("log")
        room = (high / low) ** 0.05 if high > low else 1.5
        axes.set_ylim(low / room, high * room)
        logarithmic_ticks(axes.yaxis, low / room, high * room)
        return
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    axes.set_ylim(0.0 if 0 <= low <= high / 3 else low - room, high + room)
    axes.yaxis.set_major_formatter(import_extra("matplotlib.ticker").FuncFormatter(tick_text))
