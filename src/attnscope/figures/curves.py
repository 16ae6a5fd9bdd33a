"""`training_curves`: the scores of heads over a training run, and the losses above them.

In: numbers by step. Out: a figure with a label at the end of each curve. Does not know: where scores come from.
Memory: that of the curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope.errors import ShapeError
from attnscope.extras import import_extra
from attnscope.figures.drawing import new_figure
from attnscope.figures.panel import (
    COLOURS,
    LANE,
    POINTS,
    SMALL,
    CurveLabel,
    draw_end_labels,
    end_label,
    plain_frame,
    text_colour,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_KINDS = len(COLOURS)
TRAINING, VALIDATION = "#8a8a8a", "#222222"
LEFT, WIDTH, RIGHT = 0.62, 5.4, 0.95  # inches: left margin, panels, right margin
BOTTOM, SCORES, GAP, LOSSES, TOP = 0.48, 2.6, 0.12, 1.3, 0.12
TITLE = 0.26  # inches, if there is one
LETTER_INCHES = 0.06
POLE: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.7, "zorder": 1}
DOT: dict[str, Any] = {"marker": "o", "markersize": 6, "markeredgecolor": "white", "zorder": 5, "clip_on": False}
MAX_MARKED = 40  # steps with a marker each
MIN_LOG_RATIO = 100  # of the last step to the first one, for a logarithmic axis


class Kind(NamedTuple):
    """A kind of head: its name, the scores of all heads (steps, heads), and the step at which it appears."""

    name: str
    scores: np.ndarray
    appears: int | None = None

    @property
    def strongest(self) -> np.ndarray:
        """The highest score at each step, (steps,); NaN where no head has one."""
        return np.fmax.reduce(self.scores, axis=1)


def training_curves(
    steps: Sequence[int],
    kinds: Sequence[Kind],
    *,
    loss: Mapping[int, float] = MappingProxyType({}),
    validation_loss: Mapping[int, float] = MappingProxyType({}),
    title: str | None = None,
) -> Figure:
    """Draw the scores of up to six kinds of heads over training, and the losses above them.

    Every head is a thin line, the highest score of each kind a thick one. A dot marks where a kind appears, below its
    name and step. Exponentially spaced steps are drawn on a logarithmic scale.

    Args:
        steps: The scored steps.
        kinds: The kinds of heads.
        loss: The training loss by step, in nats per token.
        validation_loss: The validation loss by step, in nats per token.
        title: The title of the figure.

    Returns:
        A matplotlib figure.

    >>> scores = np.array([[0.1, 0.0], [0.2, 0.1], [0.9, 0.1]])
    >>> figure = training_curves([100, 200, 300], [Kind("induction", scores, 300)], loss={100: 3.1, 300: 2.2})
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['score', 'nats per token']
    """
    _check(steps, kinds)
    flags = _flags(steps, kinds)
    widths = [LETTER_INCHES * (len(flag.text) + 2) for flag in flags]
    right = max([RIGHT, *widths])
    figure = new_figure(LEFT + WIDTH + right, 1.0)
    figure.set_layout_engine("none")  # all sizes are given in inches, so that labels stay beside their curves
    below = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    panels = [(below, SCORES)]
    if loss or validation_loss:
        panels.append((figure.add_axes((0.0, 0.0, 1.0, 0.5), sharex=below), LOSSES))
    _scale_steps(below, steps, [*loss, *validation_loss])
    lanes = _lanes([_inches_across(below, flag.place) for flag in flags], widths)
    _place(figure, panels, GAP + LANE * (max(lanes, default=-1) + 1), TITLE if title else 0.0)
    _draw_scores(below, steps, kinds)
    for flag, lane in zip(flags, lanes, strict=True):
        _draw_flag(below, flag, lane)
    for axes, _ in panels[1:]:
        _draw_losses(axes, loss, validation_loss)
        for flag in flags:
            axes.axvline(flag.place, color=flag.colour, **POLE)
    if title:
        left, top = LEFT / figure.get_figwidth(), 1 - TOP / figure.get_figheight()
        figure.text(left, top, title, va="top", fontsize=9, parse_math=False)
    return figure


def _check(steps: Sequence[int], kinds: Sequence[Kind]) -> None:
    if not steps or any(one >= other for one, other in pairwise(steps)):
        raise ShapeError(f"training_curves: expected at least one step, in increasing order, got {list(steps)[:9]}")
    if not 1 <= len(kinds) <= MAX_KINDS:
        raise ShapeError(f"training_curves: expected 1 to {MAX_KINDS} kinds of heads, got {len(kinds)}")
    for kind in kinds:
        if kind.scores.ndim != 2 or kind.scores.shape[0] != len(steps) or not kind.scores.shape[1]:
            raise ShapeError(
                f"training_curves: expected scores ({len(steps)}, heads) for {kind.name}, got {kind.scores.shape}"
            )
        if kind.appears is not None and kind.appears not in steps:
            raise ShapeError(f"training_curves: expected {kind.name} to appear at one of the steps, got {kind.appears}")


def _scale_steps(axes: Axes, steps: Sequence[int], others: Sequence[int]) -> None:
    """Set the scale and ticks of the step axis."""
    ticker = import_extra("matplotlib.ticker")
    first, last = min([*steps, *others]), max([*steps, *others])
    least = min((step for step in steps if step > 0), default=1)
    if (
        steps[-1] >= MIN_LOG_RATIO * least and median(steps) < steps[-1] / 4
    ):  # the median of even steps is in the middle
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)  # includes step 0
        axes.set_xlim(first - least / 10, last * 1.2)
    else:
        axes.xaxis.set_major_locator(ticker.MaxNLocator(7, integer=True))
        room = (last - first) * 0.02 or 1.0
        axes.set_xlim(first - room, last + room)
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))


def _place(figure: Figure, panels: Sequence[tuple[Axes, float]], gap: float, title: float) -> None:
    """Place panels from bottom to top, each with its height in inches, with gaps between them."""
    whole = BOTTOM + gap + sum(inches for _, inches in panels) + TOP + title
    figure.set_figheight(whole)
    wide, start = figure.get_figwidth(), BOTTOM
    for axes, inches in panels:
        axes.set_position((LEFT / wide, start / whole, WIDTH / wide, inches / whole))
        plain_frame(axes)
        axes.tick_params(labelbottom=axes is panels[0][0])
        start += inches + gap


def _draw_scores(axes: Axes, steps: Sequence[int], kinds: Sequence[Kind]) -> None:
    names = []
    for kind, colour in reversed(list(zip(kinds, COLOURS, strict=False))):  # the most specific on top
        faint = max(0.35 * min(1.0, 16 / kind.scores.shape[1]), 0.2)  # many heads overlap
        axes.plot(steps, kind.scores, color=colour, linewidth=0.6, alpha=faint, zorder=1.5, label=f"_{kind.name}")
        mark = {"marker": "o", "markersize": 2.4} if len(steps) <= MAX_MARKED else {}
        axes.plot(steps, kind.strongest, color=colour, linewidth=1.8, label=kind.name, **mark)
        names += end_label(kind.name, colour, steps, kind.strongest)
    seen = np.concatenate([kind.scores.ravel() for kind in kinds])
    seen = seen[np.isfinite(seen)]
    axes.set_ylim(min(0.0, seen.min(initial=0.0) * 1.05), max(1.0, seen.max(initial=0.0) * 1.05))
    axes.set_xlabel("training step", fontsize=POINTS)
    axes.set_ylabel("score", fontsize=POINTS)
    draw_end_labels(axes, names, SCORES)


def _draw_losses(axes: Axes, loss: Mapping[int, float], validation_loss: Mapping[int, float]) -> None:
    names = []
    for text, curve, colour, width in (
        ("training", loss, TRAINING, 0.7),
        ("validation", validation_loss, VALIDATION, 1.8),
    ):
        mark = {"marker": "o", "markersize": 2.4} if len(curve) <= MAX_MARKED else {}
        steps, values = list(curve), np.array(list(curve.values()), dtype=float)
        axes.plot(steps, values, color=colour, linewidth=width, label=text, **mark)
        names += end_label(text, colour, steps, values)
    axes.set_ylabel("nats per token", fontsize=POINTS)
    draw_end_labels(axes, names, LOSSES)


def _flags(steps: Sequence[int], kinds: Sequence[Kind]) -> list[CurveLabel]:
    """Return the labels of the steps at which kinds appear."""
    values = [dict(zip(steps, kind.strongest.tolist(), strict=True)) for kind in kinds]
    return [
        CurveLabel(f"{kind.name} at {kind.appears:,}", colour, kind.appears, value[kind.appears])
        for kind, colour, value in zip(kinds, COLOURS, values, strict=False)
        if kind.appears is not None
    ]


def _inches_across(axes: Axes, step: float) -> float:
    """Return the distance of a step from the left of the panel."""
    return WIDTH * float(axes.transAxes.inverted().transform(axes.transData.transform((step, 0.0)))[0])


def _lanes(starts: Sequence[float], widths: Sequence[float]) -> list[int]:
    """Return a lane for each flag, so that they do not overlap; 0 is the lowest.

    Of overlapping flags, the left one is higher, so that its pole does not cross the flags to its right.

    >>> _lanes([0.0, 0.5, 3.0], [1.0, 1.0, 1.0])
    [1, 0, 0]
    """
    lanes = [0] * len(starts)
    begins: list[float] = []  # of the leftmost flag in each lane
    for at in sorted(range(len(starts)), key=lambda at: -starts[at]):
        end = starts[at] + widths[at]
        lane = next((lane for lane in range(len(begins)) if end <= min(begins[lane:])), len(begins))
        begins[lane : lane + 1] = [starts[at]]
        lanes[at] = lane
    return lanes


def _draw_flag(axes: Axes, flag: CurveLabel, lane: int) -> None:
    """Draw a dot at a point, and a flag above it."""
    low, high = axes.get_ylim()
    foot, top = (flag.value - low) / (high - low), 1 + (GAP / 2 + LANE * (lane + 1)) / SCORES
    upright = axes.get_xaxis_transform()
    axes.plot([flag.place] * 2, [foot, top], color=flag.colour, transform=upright, clip_on=False, label="_pole", **POLE)
    axes.plot([flag.place], [flag.value], color=flag.colour, label=f"_{flag.text}", **DOT)
    axes.annotate(
        flag.text,
        (flag.place, top - LANE / 2 / SCORES),
        (2.5, 0),
        xycoords=upright,
        textcoords="offset points",
        fontsize=SMALL,
        color=text_colour(flag.colour),
        va="center",
        annotation_clip=False,
    )
